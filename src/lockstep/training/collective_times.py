"""Finds in a JAX profile how long the devices communicated."""

# JAX is only partly typed, so the type checker does not know the types of its values in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, TypeAlias

import jax

Interval: TypeAlias = tuple[float, float]
"""The beginning and the end of an event, in nanoseconds."""

_COLLECTIVE: Final = re.compile(
    r"^(all-reduce|all-gather|reduce-scatter|all-to-all|ragged-all-to-all|collective-permute|all-reduce-scatter)\b"
    r"|^nccl(Dev)?Kernel"
)
_DEVICE: Final = re.compile(r"^/device:(GPU|TPU):\d+$")


def collective_s(folder: Path, *, num_devices: int) -> float:
    """Returns how long a device communicated in a profile and computed nothing, on average over the devices.

    On GPUs and TPUs, communication that other operations of the same device hide does not count. On CPUs, the wait for
    the other devices is a part of a collective, and counts.

    Args:
        folder: the folder with the profile's files.
        num_devices: the number of devices of this process.

    Returns:
        The time in seconds, over the whole profile.
    """
    total_ns = 0.0
    for path in folder.rglob("*.xplane.pb"):
        planes = list(jax.profiler.ProfileData.from_file(str(path)).planes)
        devices = [plane for plane in planes if _DEVICE.match(plane.name)]
        if devices:
            total_ns += sum(_exposed_ns(plane) for plane in devices)
        else:
            lines = [line for plane in planes if plane.name == "/host:CPU" for line in plane.lines]
            total_ns += sum(_length_ns(_events([line], collective=True)) for line in lines if "XLA" in line.name)
    return total_ns / 1e9 / num_devices


def _exposed_ns(plane: Any) -> float:
    lines = [line for line in plane.lines if line.name == "XLA Ops" or line.name.startswith("Stream")]
    others = _events(lines, collective=False)
    return _length_ns([*others, *_events(lines, collective=True)]) - _length_ns(others)


def _events(lines: Iterable[Any], *, collective: bool) -> list[Interval]:
    return [
        (event.start_ns, event.start_ns + event.duration_ns)
        for line in lines
        for event in line.events
        if (_COLLECTIVE.match(event.name) is not None) is collective
    ]


def _length_ns(intervals: Iterable[Interval]) -> float:
    """Returns the length of the union of intervals."""
    total_ns, end_ns = 0.0, float("-inf")
    for begin_ns, until_ns in sorted(intervals):
        total_ns += max(0.0, until_ns - max(begin_ns, end_ns))
        end_ns = max(end_ns, until_ns)
    return total_ns
