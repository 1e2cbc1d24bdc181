"""How much memory a program may have, and whether the system killed it for want of some (Linux alone)."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, final

import psutil

_PROC: Final = Path("/proc")
_CGROUPS: Final = Path("/sys/fs/cgroup")
KEPT_S: Final = 60.0
_UNLIMITED: Final = 1 << 60
"""Limits of cgroups that are none: version 1 writes the largest number of pages."""


def memory_limit_bytes(*, proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """Returns how much memory this process and its children may have: their control group's limit, or the machine's.

    Args:
        proc: where the kernel's process files are.
        cgroups: where control groups are mounted.
    """
    total = psutil.virtual_memory().total
    try:
        groups = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return total
    limits = [total]
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            limits += _limits(cgroups, path, "memory.max")
        elif "memory" in controllers.split(","):
            limits += _limits(cgroups / "memory", path, "memory.limit_in_bytes")
    return min(limits)


def _limits(root: Path, path: str, name: str) -> list[int]:
    """Returns the limits of a control group and of those that it is in."""
    group = root / path.lstrip("/")
    found: list[int] = []
    for folder in (group, *group.parents):
        if not folder.is_relative_to(root):
            break
        try:
            limit = int((folder / name).read_text())
        except (OSError, ValueError):  # no such file, or "max"
            continue
        if limit < _UNLIMITED:
            found.append(limit)
    return found


@final
class MemoryKills:
    """Notices that the kernel killed somebody on this machine for want of memory.

    The kernel counts such kills for the whole machine, in a control group or not; who looks every second or two, and
    sees the count grow as a program of its own dies by SIGKILL, knows why.

    Args:
        proc: where the kernel's process files are.
        clock: seconds of a steady clock.
    """

    def __init__(self, *, proc: Path = _PROC, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = proc / "vmstat"
        self._clock = clock
        self._looks = deque([(clock(), self._count())])

    def look(self) -> None:
        """Remembers the count."""
        now_s = self._clock()
        self._looks.append((now_s, self._count()))
        while self._looks[1][0] < now_s - KEPT_S:  # one of before stays
            self._looks.popleft()

    def grew(self, *, within_s: float) -> bool:
        """Whether there was a kill so lately; a look's time earlier at the most.

        Args:
            within_s: at most `KEPT_S`.
        """
        since_s = self._clock() - within_s
        before = next((count for time_s, count in reversed(self._looks) if time_s <= since_s), self._looks[0][1])
        return self._count() > before

    def _count(self) -> int:
        try:
            found = re.search(r"^oom_kill (\d+)$", self._file.read_text(), re.MULTILINE)
        except OSError:
            return 0
        return 0 if found is None else int(found.group(1))
