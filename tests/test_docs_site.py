"""The site of the documentation is built from all pages, has no dead link, and loads nothing from another host."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SITE = ROOT / "docs" / "site"
LOADED = re.compile(r"""<(?:script|img|link rel="(?:stylesheet|icon|preconnect)")[^>]*(?:src|href)="(https?:[^"]+)""")


def pages_of(nav: object) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    items = nav.values() if isinstance(nav, dict) else nav
    return [page for item in items for page in pages_of(item)]


def build(place: Path) -> subprocess.CompletedProcess[str]:
    """Builds the site of a copy of the repository's pages."""
    return subprocess.run(
        [sys.executable, "docs/site/build.py"], cwd=place, capture_output=True, text=True, timeout=120
    )


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository with what is under version control here, as it is now."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        if name.endswith(".md") or name.startswith(("docs/", "examples/", "benchmarks/")) or name == "LICENSE":
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, tmp_path / name)
    subprocess.run(["git", "init", "-q", "."], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "-A"], cwd=tmp_path, check=True)
    return tmp_path


def test_it_is_built_and_loads_nothing_from_elsewhere(clone: Path) -> None:
    done = build(clone)
    assert done.returncode == 0, done.stdout + done.stderr
    built = list((clone / "build" / "site" / "html").rglob("*.html"))
    assert len(built) > 40
    assert {url for page in built for url in LOADED.findall(page.read_text("utf-8"))} == set()


@pytest.mark.parametrize(
    "saying",
    [
        {"nowhere.md": "page does not exist", "costs.md#no-such-heading": "anchor does not exist"},
        {"data": "a folder"},
        {"nowhere.md": "page does not exist"},
        {"costs.md#no-such-heading": "anchor does not exist"},
    ],
    ids=" and ".join,
)
@pytest.mark.heavy
def test_a_dead_link_ends_the_build(clone: Path, saying: dict[str, str]) -> None:
    with (clone / "docs" / "queue.md").open("a") as page:
        page.writelines(f"\n[a link]({link})\n" for link in saying)
    done = build(clone)
    assert done.returncode != 0
    for said in saying.values():
        assert said in done.stdout + done.stderr


def test_every_page_of_the_documentation_is_in_the_menu() -> None:
    menu = pages_of(tomllib.loads((SITE / "zensical.toml").read_text("utf-8"))["project"]["nav"])
    pages = [page.relative_to(ROOT).as_posix() for page in (ROOT / "docs").rglob("*.md")]
    assert sorted(pages) == sorted(page for page in menu if page.startswith("docs/"))
    assert len(menu) == len(set(menu))
