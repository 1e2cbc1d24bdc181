"""The lifecycle lock of a home: only one process at a time starts or stops the home's service."""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from lockstep.errors import AlreadyRunningError
from lockstep.home import Home

LIFECYCLE_TIMEOUT_S: Final = 180.0
"""How long `up` or `down` waits for another `up` or `down`."""
POLL_S: Final = 0.05


@contextlib.contextmanager
def lifecycle_lock(home: Home) -> Iterator[int]:
    """Holds the home's lifecycle lock, which excludes every other `up`, `down` and choice of a cluster.

    A starting service holds the lock too, until it answers requests. Yields the file descriptor of the lock.

    Raises:
        AlreadyRunningError: If another process holds the lock for longer than `LIFECYCLE_TIMEOUT_S`.
    """
    deadline = time.monotonic() + LIFECYCLE_TIMEOUT_S
    with home.lifecycle_lock.open("a") as file:
        while not _try_lock(file.fileno()):
            if time.monotonic() > deadline:
                raise AlreadyRunningError(
                    f"another `lockstep up` or `lockstep down` has been at work on {home.path} for a long time",
                    action=f"read {home.service_log}",
                )
            time.sleep(POLL_S)
        yield file.fileno()


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of a file. Creates the file if it does not exist."""
    with path.open("a") as file:
        return not _try_lock(file.fileno())


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
