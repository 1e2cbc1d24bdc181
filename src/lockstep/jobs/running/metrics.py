"""What is measured of a replica every few seconds, and how a long series of it is made short."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, cast, final

SAMPLE_INTERVAL_S: Final = 5.0
"""Between two samples of a replica."""

MAX_SERIES: Final = 100
"""Where nobody names metrics, a replica's series end with so many: a program may give its own a new name each time."""

PROGRAM_PREFIX: Final = "program/"
"""What the program's own metrics begin with: its loss is ``program/loss``."""


@final
class Unit(StrEnum):
    """What a metric is counted in."""

    CORES = "cores"
    BYTES = "bytes"
    BYTES_PER_S = "bytes/s"
    SHARE = "share"
    STEPS = "steps"
    STEPS_PER_S = "steps/s"
    EXAMPLES_PER_S = "examples/s"
    NONE = ""


@final
@dataclass(frozen=True, kw_only=True)
class Metric:
    """One thing that is measured.

    Attributes:
        unit: what it is counted in.
        what: what it is, in a few words.
    """

    unit: Unit
    what: str


METRICS: Final[Mapping[str, Metric]] = MappingProxyType(
    {
        "cpuCores": Metric(unit=Unit.CORES, what="processor time of the program and its children, a second"),
        "memoryBytes": Metric(unit=Unit.BYTES, what="resident memory of the program and its children"),
        "diskReadBytesPerSecond": Metric(unit=Unit.BYTES_PER_S, what="read from disks by them"),
        "diskWrittenBytesPerSecond": Metric(unit=Unit.BYTES_PER_S, what="written to disks by them"),
        "networkReceivedBytesPerSecond": Metric(
            unit=Unit.BYTES_PER_S, what="received by their node, loopback left out"
        ),
        "networkSentBytesPerSecond": Metric(unit=Unit.BYTES_PER_S, what="sent by their node, loopback left out"),
        "gpuUtilization": Metric(unit=Unit.SHARE, what="of the time in which a kernel ran, over the replica's GPUs"),
        "gpuMemoryBytes": Metric(unit=Unit.BYTES, what="memory in use on the replica's GPUs"),
        "step": Metric(unit=Unit.STEPS, what="steps taken, as the program's heartbeats say"),
        "stepsPerSecond": Metric(unit=Unit.STEPS_PER_S, what="steps a second, as they say"),
        "examplesPerSecond": Metric(unit=Unit.EXAMPLES_PER_S, what="examples a second, as they say"),
    }
)
"""What is measured, by name; beside it, the program's own metrics under `PROGRAM_PREFIX`."""


def unit_of(name: str) -> Unit:
    """Returns what a metric is counted in; a program's own have no unit."""
    known = METRICS.get(name)
    return Unit.NONE if known is None else known.unit


@final
@dataclass(frozen=True, kw_only=True)
class Sample:
    """One look at a replica.

    Attributes:
        time_s: when, seconds since 1970 UTC.
        values: what was seen, by the metrics' names; finite numbers.
    """

    time_s: float
    values: Mapping[str, float]


def encode_sample(sample: Sample) -> bytes:
    """Returns a sample as a line of JSON."""
    return json.dumps([round(sample.time_s, 3), dict(sample.values)], separators=(",", ":")).encode() + b"\n"


def decode_sample(line: bytes) -> Sample | None:
    """Reads what `encode_sample` wrote; None for anything else."""
    try:
        document = json.loads(line)
    except ValueError:
        return None
    if not isinstance(document, list) or len(cast("list[Any]", document)) != 2:
        return None
    time_s, values = cast("list[Any]", document)
    if not _is_finite(time_s) or not isinstance(values, dict):
        return None
    known = {name: float(value) for name, value in cast("dict[str, Any]", values).items() if _is_finite(value)}
    return Sample(time_s=float(time_s), values=known)


def _is_finite(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(cast("float", value))


@final
@dataclass(frozen=True, kw_only=True)
class Series:
    """One metric over time.

    Attributes:
        name: the metric's.
        points: times in seconds since 1970 UTC, each the beginning of an interval, and the means over them; intervals
            in which nothing was measured are left out.
    """

    name: str
    points: tuple[tuple[float, float], ...]


def series_of(
    samples: Iterable[Sample], *, names: Sequence[str], since_s: float, until_s: float, interval_s: float
) -> list[Series]:
    """Returns samples as series, one point an interval.

    Args:
        samples: in any order.
        names: which metrics; all that are found, where it is empty, but no more than `MAX_SERIES`.
        since_s: the first interval's beginning.
        until_s: no sample from here on counts.
        interval_s: how long an interval is.
    """
    sums: dict[str, dict[int, tuple[float, int]]] = {}
    for sample in samples:
        if not since_s <= sample.time_s < until_s:
            continue
        number = int((sample.time_s - since_s) // interval_s)
        for name, value in sample.values.items():
            if (name in names) if names else (name in METRICS or name in sums or len(sums) < MAX_SERIES):
                total, count = sums.setdefault(name, {}).get(number, (0.0, 0))
                sums[name][number] = (total + value, count + 1)
    order = {name: position for position, name in enumerate(METRICS)}
    return [
        Series(
            name=name,
            points=tuple((since_s + number * interval_s, _mean(*sums[name][number])) for number in sorted(sums[name])),
        )
        for name in sorted(sums, key=lambda name: (order.get(name, len(order)), name))
    ]


def _mean(total: float, count: int) -> float:
    """Returns a mean; where a diverging program's numbers have no sum that a float holds, the largest one."""
    return total / count if math.isfinite(total) else math.copysign(sys.float_info.max, total)
