"""What a program and its children use of the node."""

from __future__ import annotations

import contextlib
import time
from typing import final

import psutil

from lockstep.jobs.orders import ProgramUsage


@final
class UsageMeter:
    """Adds up processor time and memory of a process and its descendants, by sampling.

    A child that ended between two samples leaves the time that was seen last; the exact sum of the program itself comes
    with its end (see `finish`).

    Args:
        pid: the program's process id.
        started: ``time.monotonic()`` at its start.
    """

    def __init__(self, pid: int, *, started: float) -> None:
        try:
            self._process = psutil.Process(pid)
        except psutil.NoSuchProcess:  # it has ended already: `finish` knows the rest
            self._process = None
        self._started = started
        self._cpu_s: dict[tuple[int, float], float] = {}
        self._peak_memory_bytes = 0

    def sample(self) -> ProgramUsage:
        """Looks once, and returns what was used so far."""
        resident = 0
        processes: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error):
            if self._process is not None:
                processes = [self._process, *self._process.children(recursive=True)]
        for process in processes:
            try:
                with process.oneshot():
                    times = process.cpu_times()
                    self._cpu_s[process.pid, process.create_time()] = times.user + times.system
                    resident += process.memory_info().rss
            except psutil.Error:  # it ended meanwhile
                continue
        self._peak_memory_bytes = max(self._peak_memory_bytes, resident)
        return self._usage(sum(self._cpu_s.values()))

    def finish(self, *, cpu_s: float, peak_memory_bytes: int) -> ProgramUsage:
        """Returns the final sum.

        Args:
            cpu_s: what the kernel accounted to the program and the children that it waited for.
            peak_memory_bytes: the program's own largest resident size, from the kernel.
        """
        self._peak_memory_bytes = max(self._peak_memory_bytes, peak_memory_bytes)
        return self._usage(max(cpu_s, sum(self._cpu_s.values())))

    def _usage(self, cpu_s: float) -> ProgramUsage:
        wall_s = time.monotonic() - self._started
        return ProgramUsage(cpu_s=round(cpu_s, 3), wall_s=round(wall_s, 3), peak_memory_bytes=self._peak_memory_bytes)
