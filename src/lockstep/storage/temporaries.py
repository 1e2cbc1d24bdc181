"""Files of this machine that are being written, and what killed writers left of them."""

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
"""Names that start so are being written: never listed, never allowed in a key."""

LEFT_AFTER_S: Final = 24 * 3600.0
"""How long nobody has written to what is taken for left behind."""

_SWEPT_EVERY_S: Final = 3600.0
_MAX_FOLDERS: Final = 1024
_LOCK: Final = threading.Lock()
_SWEPT: Final[dict[str, float]] = {}


def temporary_name() -> str:
    """Returns a fresh name for something that is being written."""
    return f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}"


def create_temporary(path: Path) -> BinaryIO:
    """Makes a new file, locked for as long as it is open, so that nobody sweeps it away.

    Now and then it also sweeps its folder; see `sweep`.
    """
    file = open(path, "xb")  # noqa: SIM115 - the caller's, who closes it
    with suppress(OSError):  # a file system without locks: nothing on it is ever swept
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with suppress(OSError):
        if _is_due(str(path.parent)):
            # The clock of the file system, which need not be this machine's.
            sweep(path.parent, now_s=os.fstat(file.fileno()).st_mtime)
    return file


def sweep(folder: Path, *, now_s: float) -> None:
    """Deletes what killed writers left in a folder.

    Only this user's files that have been written to by nobody for `LEFT_AFTER_S`, and whose lock nobody holds: a writer
    that lives holds its own until the file has its name, however slow it is.

    Args:
        folder: where to look; not below it.
        now_s: the file system's time, in seconds since 1970 (UTC).
    """
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.name.startswith(TEMPORARY_PREFIX)]
    for name in names:
        with suppress(OSError):  # gone already, another user's, locked, or on a file system without locks
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
    """Whether a folder was not swept of late by this process: who writes many small objects need not look each time."""
    now_s = time.monotonic()
    with _LOCK:
        last_s = _SWEPT.get(folder)
        if last_s is not None and now_s - last_s < _SWEPT_EVERY_S:
            return False
        if len(_SWEPT) >= _MAX_FOLDERS:
            _SWEPT.clear()
        _SWEPT[folder] = now_s
        return True
