"""A local folder for the shards that are being made. Folders that killed runs left are deleted."""

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
    """Creates a folder for temporary files, with a lock that is held while the context is open."""
    _sweep(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as made:
        folder = Path(made)
        with open(folder / f"{_LOCK}.new", "wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            # The file gets its name only when its lock is held, so other processes never see it unlocked.
            os.rename(file.name, folder / _LOCK)
            yield folder


def _sweep(parent: Path) -> None:
    """Deletes the folders of runs that were killed: those whose lock is not held."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            found = folder.lstat()
            if folder.is_symlink() or found.st_uid != os.geteuid():
                continue
            with open(folder / _LOCK, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
