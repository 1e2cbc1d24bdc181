"""Measures what a container uses of the node, from its control group, which includes children that have ended."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import Final, final

from lockstep.jobs.running.orders import ProgramUsage
from lockstep.runner.usage import Consumption

_PROC: Final = Path("/proc")
_CGROUPS: Final = Path("/sys/fs/cgroup")


@final
class ContainerMeter:
    """Reads the control group of a container's first process, in version 1 or 2 of control groups.

    The group disappears with the container. The last measured values are kept.

    Args:
        pid: the container's first process; None if this machine cannot see it, so nothing is measured.
        started: the time of the start, by ``time.monotonic()``.
        proc: the folder of the kernel's process files.
        cgroups: the folder where control groups are mounted.
    """

    def __init__(self, pid: int | None, *, started: float, proc: Path = _PROC, cgroups: Path = _CGROUPS) -> None:
        self._started = started
        self._lock = threading.Lock()
        self._last = Consumption()
        self._peak_memory_bytes = 0
        self._cpu: Path | None = None
        self._memory: Path | None = None
        self._disk: Path | None = None
        with contextlib.suppress(OSError):
            own = (proc / "self" / "cgroup").read_text()
            for line in (proc / str(pid) / "cgroup").read_text().splitlines() if pid is not None else ():
                if line not in own.splitlines():  # a group shared with the runner would measure others, too
                    self._take(line, cgroups)

    def _take(self, line: str, cgroups: Path) -> None:
        _, controllers, path = line.split(":", 2)
        names, place = controllers.split(","), path.lstrip("/")
        if "cpuacct" in names:
            self._cpu = cgroups / "cpuacct" / place / "cpuacct.usage"
        if "memory" in names:
            self._memory = cgroups / "memory" / place
        if "blkio" in names:
            self._disk = cgroups / "blkio" / place / "blkio.throttle.io_service_bytes"
        group = cgroups / place
        if not controllers and (group / "cpu.stat").exists():
            self._cpu, self._memory, self._disk = group / "cpu.stat", group, group / "io.stat"

    def sample(self) -> ProgramUsage:
        """Takes one sample, and returns the usage so far. Thread-safe."""
        with self._lock:
            seen = self._look()
            self._last = Consumption(
                cpu_s=max(self._last.cpu_s, seen.cpu_s),
                memory_bytes=seen.memory_bytes,
                disk_read_bytes=max(self._last.disk_read_bytes, seen.disk_read_bytes),
                disk_written_bytes=max(self._last.disk_written_bytes, seen.disk_written_bytes),
            )
            self._peak_memory_bytes = max(self._peak_memory_bytes, seen.memory_bytes)
            return ProgramUsage(
                cpu_s=round(self._last.cpu_s, 3),
                wall_s=round(time.monotonic() - self._started, 3),
                peak_memory_bytes=self._peak_memory_bytes,
            )

    @property
    def consumption(self) -> Consumption:
        """The consumption at the last sample."""
        return self._last

    def _look(self) -> Consumption:
        cpu_s, memory_bytes, disk = 0.0, 0, (0, 0)
        with contextlib.suppress(OSError, ValueError, KeyError):  # it has just ended
            cpu_s = 0.0 if self._cpu is None else _cpu_s(self._cpu)
        with contextlib.suppress(OSError, ValueError, KeyError):
            memory_bytes = 0 if self._memory is None else _memory_bytes(self._memory)
        with contextlib.suppress(OSError, ValueError, KeyError):
            disk = (0, 0) if self._disk is None else _disk_bytes(self._disk)
        return Consumption(cpu_s=cpu_s, memory_bytes=memory_bytes, disk_read_bytes=disk[0], disk_written_bytes=disk[1])


def _cpu_s(file: Path) -> float:
    if file.name == "cpu.stat":
        return int(_fields(file)["usage_usec"]) / 1e6
    return int(file.read_text()) / 1e9


def _memory_bytes(group: Path) -> int:
    """Returns a group's memory in bytes, without the file cache that the kernel would drop at once."""
    if (group / "memory.current").exists():
        used, dropped = group / "memory.current", "inactive_file"
    else:
        used, dropped = group / "memory.usage_in_bytes", "total_inactive_file"
    return max(0, int(used.read_text()) - int(_fields(group / "memory.stat")[dropped]))


def _fields(file: Path) -> dict[str, str]:
    return dict(line.split(" ", 1) for line in file.read_text().splitlines())


def _disk_bytes(file: Path) -> tuple[int, int]:
    """Returns the bytes that were read from and written to disks, over all devices."""
    read = written = 0
    for line in file.read_text().splitlines():
        words = line.split()
        if file.name == "io.stat":  # 8:0 rbytes=1 wbytes=2 rios=...
            fields = dict(word.split("=", 1) for word in words[1:])
            read, written = read + int(fields.get("rbytes", 0)), written + int(fields.get("wbytes", 0))
        elif len(words) == 3:  # 8:0 Read 1
            read += int(words[2]) if words[1] == "Read" else 0
            written += int(words[2]) if words[1] == "Write" else 0
    return read, written
