"""Measures the node's resources that a program and its children use."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, final

import psutil

from lockstep.jobs.running.orders import ProgramUsage
from lockstep.processes import ProcessIdentity


@final
@dataclass(frozen=True, kw_only=True)
class Consumption:
    """The measured consumption of a program and its descendants.

    Attributes:
        cpu_s: the processor time so far, user and system, in seconds.
        memory_bytes: the current resident size, in bytes.
        disk_read_bytes: the bytes read from disks so far, if the system reports them.
        disk_written_bytes: the bytes written to disks so far, if the system reports them.
    """

    cpu_s: float = 0.0
    memory_bytes: int = 0
    disk_read_bytes: int = 0
    disk_written_bytes: int = 0


class AbstractMeter(Protocol):
    """Measures a program: a `UsageMeter`, or the meter of a container."""

    def sample(self) -> ProgramUsage:
        """Takes one sample, and returns the usage so far."""
        ...

    @property
    def consumption(self) -> Consumption:
        """The consumption at the last sample."""
        ...


@final
class UsageMeter:
    """Sums the processor time and memory of a process and its descendants, by sampling.

    For a child that ended between two samples, the last measured time counts. The exact sum for the program itself is
    known when it ends (see `finish`).

    Args:
        pid: the process id of the program.
        started: the time of its start, by ``time.monotonic()``.
    """

    def __init__(self, pid: int, *, started: float) -> None:
        try:
            self._process = psutil.Process(pid)
        except psutil.NoSuchProcess:  # it has ended already; `finish` gets the rest
            self._process = None
        self._started = started
        # These identities stay the same when the system's clock is set; psutil's creation times change with it.
        self._seen: dict[ProcessIdentity, Consumption] = {}
        self._ended = Consumption()
        self._memory_bytes = 0
        self._peak_memory_bytes = 0

    def sample(self) -> ProgramUsage:
        """Takes one sample, and returns the usage so far."""
        resident = 0
        processes: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error):
            if self._process is not None:
                processes = [self._process, *self._process.children(recursive=True)]
        for process in processes:
            try:
                with process.oneshot():
                    times = process.cpu_times()
                    resident += process.memory_info().rss
                    read, written = _disk_bytes(process)
            except psutil.Error:  # it has just ended
                continue
            identity = ProcessIdentity.of(process.pid)
            if identity is not None:
                self._seen[identity] = Consumption(
                    cpu_s=times.user + times.system, disk_read_bytes=read, disk_written_bytes=written
                )
        # A program may start ever more children. Those that are gone and reaped are therefore kept as a sum only.
        gone = [identity for identity in self._seen if ProcessIdentity.of(identity.pid) != identity]
        self._ended = _sum([self._ended, *(self._seen.pop(identity) for identity in gone)])
        self._memory_bytes = resident
        self._peak_memory_bytes = max(self._peak_memory_bytes, resident)
        return self._usage(self.consumption.cpu_s)

    @property
    def consumption(self) -> Consumption:
        """The consumption at the last sample."""
        return replace(_sum([self._ended, *self._seen.values()]), memory_bytes=self._memory_bytes)

    def finish(self, *, cpu_s: float, peak_memory_bytes: int) -> ProgramUsage:
        """Returns the final usage.

        Args:
            cpu_s: the processor time that the kernel counted for the program and the children that it waited for, in
                seconds.
            peak_memory_bytes: the program's own largest resident size, from the kernel, in bytes.
        """
        self._peak_memory_bytes = max(self._peak_memory_bytes, peak_memory_bytes)
        return self._usage(max(cpu_s, self.consumption.cpu_s))

    def _usage(self, cpu_s: float) -> ProgramUsage:
        wall_s = time.monotonic() - self._started
        return ProgramUsage(cpu_s=round(cpu_s, 3), wall_s=round(wall_s, 3), peak_memory_bytes=self._peak_memory_bytes)


def _sum(counted: Sequence[Consumption]) -> Consumption:
    return Consumption(
        cpu_s=sum(each.cpu_s for each in counted),
        disk_read_bytes=sum(each.disk_read_bytes for each in counted),
        disk_written_bytes=sum(each.disk_written_bytes for each in counted),
    )


def _disk_bytes(process: Any) -> tuple[int, int]:
    """Returns the bytes that a process has read from and written to disks; zeros on macOS, which does not tell."""
    try:
        counters = process.io_counters()
    except (AttributeError, psutil.AccessDenied):
        return 0, 0
    return counters.read_bytes, counters.write_bytes
