"""Ends a prediction server that uses more memory than its machine has, before the node has none left for others."""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, final

import psutil

from lockstep.jobs.running.orders import ReplicaOrder
from lockstep.runner.memory import memory_limit_bytes
from lockstep.runner.program import AbstractProgram

SHARE: Final = 0.9
"""The share of the node's memory that a server may use if its machine type reserves none."""
INTERVAL_S: Final = 0.2
INTERVAL_OF_ALL_S: Final = 2.0

_GIB: Final = 2**30
_PAGE_BYTES: Final = resource.getpagesize()


@final
class MemoryLimit:
    """Compares the memory of a server, and of all that it has started, with its limit.

    The server's own process is measured five times a second, since it can fill gigabytes within a second. All of them
    are measured every two seconds.

    Args:
        order: the order of the server's replica; other programs have no limit here.
        clock: returns the time of a monotonic clock, in seconds.

    Attributes:
        limit_bytes: the limit; None if there is none.
        was_exceeded: whether the limit was exceeded once.
    """

    def __init__(self, order: ReplicaOrder, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next = self._next_of_all = 0.0
        self.was_exceeded = False
        self.limit_bytes: int | None = None
        if order.server is not None and order.container is None:
            available = int(SHARE * memory_limit_bytes())
            self.limit_bytes = min(order.server.memory_bytes or available, available)

    @property
    def problem(self) -> str | None:
        """Says that the limit was exceeded, in one line; None if it was not."""
        if self.limit_bytes is None or not self.was_exceeded:
            return None
        return f"it used more than {self.limit_bytes / _GIB:.1f} GiB of memory, its limit"

    def is_exceeded(self, program: AbstractProgram) -> bool:
        """Returns whether the program uses more than its limit, or has used more before."""
        now = self._clock()
        if self.limit_bytes is None or self.was_exceeded or now < self._next:
            return self.was_exceeded
        self._next = now + INTERVAL_S
        used = _resident_bytes(program.pid)
        if now >= self._next_of_all:
            self._next_of_all = now + INTERVAL_OF_ALL_S
            # This process has no other children, and adopts those whose parents have ended.
            pids = [process.pid for process in psutil.Process().children(recursive=True)]
            used = sum(map(_resident_bytes, pids))
            if used > self.limit_bytes:  # what they share would be counted several times
                used = sum(map(_proportional_bytes, pids))
        self.was_exceeded = used > self.limit_bytes
        return self.was_exceeded


def _resident_bytes(pid: int) -> int:
    """Returns the resident size of a process; 0 if it has ended, or if the system has no such file."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    return 0


def _proportional_bytes(pid: int) -> int:
    """Returns the resident size of a process, with its share of what it shares with others; otherwise as above."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return 0
