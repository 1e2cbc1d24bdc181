"""What the figures are measured on, and what its processes use."""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory_gib() -> float:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30


def describe_machine() -> dict[str, Any]:
    """Returns the machine, for a file of results: processor, cores, memory, system, Python, load, date."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memoryGib": round(_memory_gib()),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 1),
        "date": time.strftime("%Y-%m-%d"),
    }


def line_of(machine: Mapping[str, Any]) -> str:
    """Returns the machine as one line of text."""
    return (
        f"{machine['processor']}, {machine['cores']} cores, {machine['memoryGib']} GiB, {machine['system']}, "
        f"Python {machine['python']}, load {machine['load']}, {machine['date']}"
    )


def processor_s(pid: int) -> float:
    """Returns the processor time that a process has taken so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_mib(pid: int) -> float:
    """Returns the most memory that a process has had (its resident set, what it shares with others included)."""
    return _kib(Path(f"/proc/{pid}/status"), "VmHWM:") / 1024


def pss_mib(pids: Iterable[int]) -> float:
    """Returns the memory of processes, in MiB: pages that several share are divided among them (PSS)."""
    total_kib = 0
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            total_kib += _kib(Path(f"/proc/{pid}/smaps_rollup"), "Pss:")
    return total_kib / 1024


def _kib(path: Path, name: str) -> int:
    for line in path.read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1])
    raise ProcessLookupError(path)
