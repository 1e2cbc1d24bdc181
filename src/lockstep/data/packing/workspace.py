"""A folder of this machine for the shards that are being made; one that a killed run left is taken away."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_PREFIX: Final = "lockstep-pack-"
_LOCK: Final = "lock"


@contextmanager
def workspace() -> Generator[Path]:
    """Makes a folder for temporary files, held by a lock for as long as this process needs it."""
    _sweep(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as made:
        folder = Path(made)
        with open(folder / f"{_LOCK}.new", "wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            # From here on others see the lock, which is held already.
            os.rename(file.name, folder / _LOCK)
            yield folder


def _sweep(parent: Path) -> None:
    """Deletes the folders of runs that ended without doing so: those whose lock nobody holds."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            found = folder.lstat()
            if folder.is_symlink() or found.st_uid != os.geteuid():
                continue
            with open(folder / _LOCK, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
