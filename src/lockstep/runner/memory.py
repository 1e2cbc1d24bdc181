"""Determines a program's memory limit, and whether the system killed it because it was out of memory (Linux only)."""

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
"""The value from which a control group's limit means no limit: version 1 writes the largest number of pages."""


def memory_limit_bytes(*, proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """Returns the memory limit of this process and its children, in bytes: of their control group or of the machine.

    Args:
        proc: the folder of the kernel's process files.
        cgroups: the folder where control groups are mounted.
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
    """Returns the limits of a control group and of the groups that contain it."""
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
    """Detects that the kernel killed a process on this machine because it was out of memory.

    The kernel counts such kills for the whole machine, inside and outside of control groups. If the count grows while a
    program dies by SIGKILL, a caller that samples the count every second or two knows the cause.

    Args:
        proc: the folder of the kernel's process files.
        clock: returns the time of a monotonic clock, in seconds.
    """

    def __init__(self, *, proc: Path = _PROC, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = proc / "vmstat"
        self._clock = clock
        self._samples = deque([(clock(), self._count())])

    def sample(self) -> None:
        """Records the current count."""
        now_s = self._clock()
        self._samples.append((now_s, self._count()))
        while self._samples[1][0] < now_s - KEPT_S:  # one sample from before the period is kept
            self._samples.popleft()

    def had_kill(self, *, within_s: float) -> bool:
        """Returns whether there was a kill within a recent time, or at most one sampling interval before it.

        Args:
            within_s: the length of that time in seconds, at most `KEPT_S`.
        """
        since_s = self._clock() - within_s
        before = next((count for time_s, count in reversed(self._samples) if time_s <= since_s), self._samples[0][1])
        return self._count() > before

    def _count(self) -> int:
        try:
            found = re.search(r"^oom_kill (\d+)$", self._file.read_text(), re.MULTILINE)
        except OSError:
            return 0
        return 0 if found is None else int(found.group(1))
