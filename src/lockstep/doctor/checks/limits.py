"""The limits of this process: open files, processes, memory and processors, by ulimit and by control groups."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from typing import Final, final

import psutil

from lockstep.doctor.findings import Finding, Result, error, warning
from lockstep.doctor.surroundings import Surroundings

GIB: Final = 1 << 30
LEAST_FILES: Final = 1024
ENOUGH_FILES: Final = 4096
WANTED_FILES: Final = 65_536
ENOUGH_PROCESSES: Final = 4096
LEAST_MEMORY_BYTES: Final = GIB
ENOUGH_MEMORY_BYTES: Final = 3 * GIB
MEMORY_SHARE: Final = 0.95
"""Above this share of the memory, Ray ends workers."""
_UNLIMITED: Final = 1 << 62


@final
@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of a process.

    Attributes:
        num_files: how many files it may open.
        num_processes: how many processes and threads it may have; None for no limit.
        memory_bytes: how much memory it may use, in bytes.
        used_bytes: how much of it is used, in bytes.
        num_cpus: how many processors it may use; may be a fraction.
        is_container: whether the limits are those of a container or another control group.
    """

    num_files: int
    num_processes: int | None
    memory_bytes: int
    used_bytes: int
    num_cpus: float
    is_container: bool


def check_limits(surroundings: Surroundings) -> Result:
    """Reads the limits of this process."""
    limits = read_limits(surroundings)
    memory = f"{(limits.memory_bytes - limits.used_bytes) / GIB:.1f} of {limits.memory_bytes / GIB:.1f} GiB free"
    detail = f"{limits.num_files} files, {limits.num_cpus:g} processors, {memory}"
    return Result(findings=tuple(judge_limits(limits)), detail=detail)


def read_limits(surroundings: Surroundings) -> Limits:
    """Returns the limits of this process; the tightest of ulimit's, its control groups' and the machine's."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    processes, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    memory = psutil.virtual_memory()
    limit_bytes, used_bytes, num_cpus = (
        int(memory.total),
        int(memory.total - memory.available),
        float(os.cpu_count() or 1),
    )
    max_processes = None if processes == resource.RLIM_INFINITY else processes
    is_container = False
    for group in control_groups(surroundings):
        found = _number(surroundings.read(f"{group}/memory.max"))
        if found is not None and found < limit_bytes:
            limit_bytes, is_container = found, True
            used_bytes = (_number(surroundings.read(f"{group}/memory.current")) or 0) - _reclaimable(
                surroundings, group
            )
        quota, _, period = surroundings.read(f"{group}/cpu.max").partition(" ")
        if quota.isdecimal() and period.isdecimal() and int(period):
            num_cpus = min(num_cpus, int(quota) / int(period))
        pids = _number(surroundings.read(f"{group}/pids.max"))
        if pids is not None:
            max_processes = pids if max_processes is None else min(max_processes, pids)
    return Limits(
        num_files=_UNLIMITED if files == resource.RLIM_INFINITY else files,
        num_processes=max_processes,
        memory_bytes=limit_bytes,
        used_bytes=max(0, used_bytes),
        num_cpus=num_cpus,
        is_container=is_container,
    )


def control_groups(surroundings: Surroundings) -> list[str]:
    """Returns this process's control group and those above it, as paths below the root; none without version 2."""
    own = next(
        (line[3:] for line in surroundings.read("proc/self/cgroup").splitlines() if line.startswith("0::")), None
    )
    if own is None or not surroundings.read("sys/fs/cgroup/cgroup.controllers"):
        return []
    parts = [part for part in own.split("/") if part and part != ".."]
    return ["/".join(("sys/fs/cgroup", *parts[:depth])) for depth in range(len(parts), -1, -1)]


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _reclaimable(surroundings: Surroundings, group: str) -> int:
    """Returns the bytes of a group's memory that only cache files, which the kernel frees when it needs them."""
    for line in surroundings.read(f"{group}/memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name == "inactive_file":
            return _number(value) or 0
    return 0


def judge_limits(limits: Limits) -> list[Finding]:
    """Returns the faults of limits."""
    found: list[Finding] = []
    if limits.num_files < ENOUGH_FILES:
        make = error if limits.num_files < LEAST_FILES else warning
        found.append(
            make(
                "few files may be open at once",
                received=f"{limits.num_files}: ulimit -n",
                needed=f"{ENOUGH_FILES}, better {WANTED_FILES}, for connections, Ray and shards of data",
                remedy=f"ulimit -n {WANTED_FILES}   # for good: in /etc/security/limits.conf",
            )
        )
    if limits.num_processes is not None and limits.num_processes < ENOUGH_PROCESSES:
        found.append(
            warning(
                "few processes and threads may run at once",
                received=f"{limits.num_processes}: ulimit -u, or pids.max of the control group",
                needed=f"{ENOUGH_PROCESSES}: Ray and XLA start hundreds of threads",
                remedy="ulimit -u 32768   # in a container: docker run --pids-limit=-1",
            )
        )
    where = "the control group's limit" if limits.is_container else "this machine"
    if limits.memory_bytes < ENOUGH_MEMORY_BYTES:
        make = error if limits.memory_bytes < LEAST_MEMORY_BYTES else warning
        found.append(
            make(
                "there is little memory",
                received=f"{limits.memory_bytes / GIB:.1f} GiB, {where}",
                needed=f"{ENOUGH_MEMORY_BYTES / GIB:.0f} GiB: the service, the engine and one program take two",
                remedy="docker run --memory=4g" if limits.is_container else "free -h",
            )
        )
    elif (used := limits.used_bytes / limits.memory_bytes) > MEMORY_SHARE:
        found.append(
            error(
                "the memory is full",
                received=f"{used:.0%} of {limits.memory_bytes / GIB:.1f} GiB, {where}",
                needed=f"less than {MEMORY_SHARE:.0%}: Ray ends programs above that",
                remedy="ps aux --sort=-rss | head",
            )
        )
    if limits.num_cpus < 1:
        found.append(
            warning(
                "there is less than one processor",
                received=f"{limits.num_cpus:g}, by cpu.max of the control group",
                needed="1 or more: heartbeats are late otherwise",
                remedy="docker run --cpus=2",
            )
        )
    return found
