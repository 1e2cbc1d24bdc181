"""What a program and its children use of the node."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import Any, Protocol, final

import psutil

from lockstep.jobs.orders import ProgramUsage


@final
@dataclass(frozen=True, kw_only=True)
class Consumption:
    """What a program and its descendants were seen to consume.

    Attributes:
        cpu_s: processor seconds so far, user and system.
        memory_bytes: resident now.
        disk_read_bytes: read from disks so far, where the system tells.
        disk_written_bytes: written to disks so far, likewise.
    """

    cpu_s: float = 0.0
    memory_bytes: int = 0
    disk_read_bytes: int = 0
    disk_written_bytes: int = 0


class AbstractMeter(Protocol):
    """What measures a program: `UsageMeter`, or one of a container."""

    def sample(self) -> ProgramUsage:
        """Looks once, and returns what was used so far."""
        ...

    @property
    def consumption(self) -> Consumption:
        """What was consumed when it was last looked at."""
        ...


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
        self._disk_bytes: dict[tuple[int, float], tuple[int, int]] = {}
        self._memory_bytes = 0
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
                    key = process.pid, process.create_time()
                    self._cpu_s[key] = times.user + times.system
                    resident += process.memory_info().rss
                    self._disk_bytes[key] = _disk_bytes(process)
            except psutil.Error:  # it ended meanwhile
                continue
        self._memory_bytes = resident
        self._peak_memory_bytes = max(self._peak_memory_bytes, resident)
        return self._usage(sum(self._cpu_s.values()))

    @property
    def consumption(self) -> Consumption:
        """What was consumed when it was last looked at."""
        return Consumption(
            cpu_s=sum(self._cpu_s.values()),
            memory_bytes=self._memory_bytes,
            disk_read_bytes=sum(read for read, _ in self._disk_bytes.values()),
            disk_written_bytes=sum(written for _, written in self._disk_bytes.values()),
        )

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


def _disk_bytes(process: Any) -> tuple[int, int]:
    """Returns what a process has read from disks and written to them; nothing on macOS, which does not tell."""
    try:
        counters = process.io_counters()
    except (AttributeError, psutil.AccessDenied):
        return 0, 0
    return counters.read_bytes, counters.write_bytes
