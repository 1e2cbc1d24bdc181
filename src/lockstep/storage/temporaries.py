"""Temporary files of local writes, and the sweep that deletes those of killed writers."""

from __future__ import annotations

import fcntl
import os
import stat
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

TEMPORARY_PREFIX: Final = ".lockstep-tmp-"
"""The prefix of temporary names. They are never listed and never allowed in a key."""

LEFT_AFTER_S: Final = 24 * 3600.0
"""The time since the last write after which a temporary file counts as abandoned, in seconds."""

_SWEPT_EVERY_S: Final = 3600.0
_MAX_FOLDERS: Final = 1024
_LOCK: Final = threading.Lock()
_SWEPT: Final[dict[str, float]] = {}


def temporary_name() -> str:
    """Returns a new unique name for a temporary file or object."""
    return f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}"


def create_temporary(path: Path) -> BinaryIO:
    """Creates a temporary file that is locked while it is open, so that no sweep deletes it.

    At most once an hour per folder, it also sweeps the folder; see `sweep`.
    """
    file = open(path, "xb")  # noqa: SIM115 - the caller closes it
    with suppress(OSError):  # a file system without locks: nothing on it is ever swept
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with suppress(OSError):
        if _is_due(str(path.parent)):
            # The time comes from the file system, whose clock may differ from this machine's.
            sweep(path.parent, now_s=os.fstat(file.fileno()).st_mtime)
    return file


def sweep(folder: Path, *, now_s: float) -> None:
    """Deletes the temporary files that killed writers left in a folder.

    Deletes only files of this user that nobody has written to for `LEFT_AFTER_S` and that are not locked. A running
    writer, however slow, holds the lock until its file is renamed.

    Args:
        folder: the folder to sweep, without its subfolders.
        now_s: the file system's time, in seconds since 1970 UTC.
    """
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.name.startswith(TEMPORARY_PREFIX)]
    for name in names:
        with suppress(OSError):  # already deleted, another user's, locked, or on a file system without locks
            _sweep_file(folder / name, now_s=now_s)


def _sweep_file(path: Path, *, now_s: float) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        found = os.fstat(descriptor)
        is_old = now_s - found.st_mtime >= LEFT_AFTER_S
        if is_old and stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
    finally:
        os.close(descriptor)


def _is_due(folder: str) -> bool:
    """Whether this process has not swept a folder recently: a sweep for each of many small writes would cost time."""
    now_s = time.monotonic()
    with _LOCK:
        last_s = _SWEPT.get(folder)
        if last_s is not None and now_s - last_s < _SWEPT_EVERY_S:
            return False
        if len(_SWEPT) >= _MAX_FOLDERS:
            _SWEPT.clear()
        _SWEPT[folder] = now_s
        return True
