"""What the figures are measured on."""

from __future__ import annotations

import os
import platform
import time
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


def machine_line() -> str:
    """Returns the same as one line of text."""
    one = describe_machine()
    return (
        f"{one['processor']}, {one['cores']} cores, {one['memoryGib']} GiB, {one['system']}, Python {one['python']}, "
        f"load {one['load']}, {one['date']}"
    )
