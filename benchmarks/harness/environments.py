"""Virtual environments of peers: each is made once, by uv, from pinned packages."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

OWN: Final = ("lockstep-train", "jax", "keras")
"""The packages whose versions are stated of the environment that runs a benchmark."""
PEERS: Final = {
    "pytorch": ("torch==2.15.0", "torchvision==0.29.2", "numpy==2.4.6"),
    "tensorflow": ("tensorflow-cpu==2.21.0",),
}
"""The peers that more than one benchmark has, and their packages."""
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


def peer_python(peer: str, *, folder: Path) -> Path:
    """Returns the Python of one of `PEERS`, in an environment below the folder.

    What cannot be installed ends the benchmark in one line.
    """
    packages = PEERS[peer]
    if peer == "tensorflow":
        packages = (*packages, f"keras=={importlib.metadata.version('keras')}")
    try:
        return install(peer, packages, folder=folder / peer)
    except InstallationError as error:
        sys.exit(f"benchmarks/{Path(sys.argv[0]).name}: {error}")


def run_uv(title: str, *arguments: str, **options: Any) -> None:
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


def own_versions(*names: str) -> str:
    """Returns the versions of `OWN` and of further packages of this environment."""
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in (*OWN, *names))


def versions(python: str | Path, names: Sequence[str]) -> str:
    """Returns the versions of an environment's packages, for a table."""
    command = [str(python), "-c", VERSIONS_PROGRAM, *names]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
