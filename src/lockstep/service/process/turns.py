"""Who brings a home's service up or down takes turns."""

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
"""How long one `up` or `down` waits for another."""
POLL_S: Final = 0.05


@contextlib.contextmanager
def alone(home: Home) -> Iterator[int]:
    """Keeps every other `up`, `down` and choice of a cluster of the home out; gives the lock's file descriptor.

    A service holds it too, until it answers.

    Raises:
        AlreadyRunningError: another is at work for longer than `LIFECYCLE_TIMEOUT_S`.
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
    """Whether somebody holds the lock of a file."""
    with path.open("a") as file:
        return not _try_lock(file.fileno())


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
