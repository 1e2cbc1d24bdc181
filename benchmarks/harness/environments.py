"""Virtual environments of peers: each is made once, by uv, from pinned packages."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

STAMP: Final = "packages.txt"
INSTALLATION_S: Final = 3600
VERSIONS_PROGRAM: Final = """
import importlib.metadata, sys
print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in sys.argv[1:]))
"""


class InstallationError(Exception):
    """A peer cannot be installed here."""


def install(title: str, packages: Sequence[str], *, folder: Path) -> Path:
    """Makes the environment where there is none, or one of other packages.

    Args:
        title: the peer's name, for messages.
        packages: the requirements.
        folder: where it lies, or will lie.

    Returns:
        Its Python.

    Raises:
        InstallationError: the packages cannot be installed.
    """
    python, stamp = folder / "bin" / "python", folder / STAMP
    if not stamp.exists() or stamp.read_text().split() != list(packages):
        print(f"installing {title} into {folder}", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        run_uv(title, "venv", f"--python={sys.executable}", str(folder))
        run_uv(title, "pip", "install", "--compile-bytecode", f"--python={python}", *packages)
        stamp.write_text("\n".join(packages))
    return python


def run_uv(title: str, *arguments: str, **options: object) -> None:
    """Runs uv.

    Args:
        title: what is installed, for the message.
        *arguments: uv's.
        **options: more of `subprocess.run`'s.

    Raises:
        InstallationError: uv failed.
    """
    from uv import find_uv_bin  # where environments are given, uv is not needed

    command = [find_uv_bin(), "--quiet", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALLATION_S, **options)
    if done.returncode:
        raise InstallationError(f"{title} cannot be installed: {done.stderr.strip()}")


def versions(python: str | Path, names: Sequence[str]) -> str:
    """Returns the versions of an environment's packages, for a table."""
    command = [str(python), "-c", VERSIONS_PROGRAM, *names]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
