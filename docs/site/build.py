"""Builds the site of the documentation: ``make docs-site``.

The pages link to each other, and to files beside them, by their places in the repository. So they are copied as they
lie there, with the files that they link to, and the site is built from the copies. A dead link ends the build.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
BUILT: Final = ROOT / "build" / "site"
_LINK: Final = re.compile(r"\]\(([^)#:\s]+)")


def pages() -> list[Path]:
    """Returns the pages: all Markdown files of the repository that are under version control."""
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S607
    return [ROOT / name for name in listed.stdout.splitlines()]


def copy(target: Path) -> None:
    """Copies all pages, and the files and folders that they link to.

    Args:
        target: the folder to copy to; it is made anew.
    """
    shutil.rmtree(target, ignore_errors=True)
    for page in pages():
        for linked in (page, *(page.parent / link for link in _LINK.findall(page.read_text("utf-8")))):
            place = target / linked.resolve().relative_to(ROOT)
            if linked.is_dir():
                raise SystemExit(
                    f"{page.relative_to(ROOT)} links to a folder, which a site does not show: {linked.name}"
                )
            if linked.is_file():  # the build names those that are not there
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(linked, place)


def main() -> int:
    """Builds the site; returns the exit code."""
    copy(BUILT / "pages")
    config = shutil.copy(Path(__file__).with_name("zensical.toml"), BUILT)
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "--config-file", config]
    code = subprocess.run(command, cwd=BUILT, check=False).returncode
    if code == 0:
        print(f"built {BUILT / 'html' / 'index.html'}")
    return code


if __name__ == "__main__":
    sys.exit(main())
