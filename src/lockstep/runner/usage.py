"""What a program and its children use of the node."""

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
        # By identities that hold across a step of the system's clock: psutil's creation times move with it.
        self._seen: dict[ProcessIdentity, Consumption] = {}
        self._ended = Consumption()
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
                    resident += process.memory_info().rss
                    read, written = _disk_bytes(process)
            except psutil.Error:  # it ended meanwhile
                continue
            identity = ProcessIdentity.of(process.pid)
            if identity is not None:
                self._seen[identity] = Consumption(
                    cpu_s=times.user + times.system, disk_read_bytes=read, disk_written_bytes=written
                )
        # A program may start children without end: those that are gone, and whose parent knows it, are kept as a sum.
        gone = [identity for identity in self._seen if ProcessIdentity.of(identity.pid) != identity]
        self._ended = _sum([self._ended, *(self._seen.pop(identity) for identity in gone)])
        self._memory_bytes = resident
        self._peak_memory_bytes = max(self._peak_memory_bytes, resident)
        return self._usage(self.consumption.cpu_s)

    @property
    def consumption(self) -> Consumption:
        """What was consumed when it was last looked at."""
        return replace(_sum([self._ended, *self._seen.values()]), memory_bytes=self._memory_bytes)

    def finish(self, *, cpu_s: float, peak_memory_bytes: int) -> ProgramUsage:
        """Returns the final sum.

        Args:
            cpu_s: what the kernel accounted to the program and the children that it waited for.
            peak_memory_bytes: the program's own largest resident size, from the kernel.
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
    """Returns what a process has read from disks and written to them; nothing on macOS, which does not tell."""
    try:
        counters = process.io_counters()
    except (AttributeError, psutil.AccessDenied):
        return 0, 0
    return counters.read_bytes, counters.write_bytes
