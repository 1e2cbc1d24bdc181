"""Defines what is measured of each replica every few seconds, and reduces long series of samples."""

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
"""The time between two samples of a replica, in seconds."""

MAX_SERIES: Final = 100
"""The maximum number of series if no metrics are named: a program can keep inventing names of metrics."""

PROGRAM_PREFIX: Final = "program/"
"""The prefix of the program's own metrics: its loss is ``program/loss``."""


@final
class Unit(StrEnum):
    """The unit of a metric."""

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
    """A measured quantity.

    Attributes:
        unit: the unit of its values.
        what: a short description.
    """

    unit: Unit
    what: str


METRICS: Final[Mapping[str, Metric]] = MappingProxyType(
    {
        "cpuCores": Metric(unit=Unit.CORES, what="processor time of the program and its children, per second"),
        "memoryBytes": Metric(unit=Unit.BYTES, what="resident memory of the program and its children"),
        "diskReadBytesPerSecond": Metric(unit=Unit.BYTES_PER_S, what="read from disks by the program and its children"),
        "diskWrittenBytesPerSecond": Metric(
            unit=Unit.BYTES_PER_S, what="written to disks by the program and its children"
        ),
        "networkReceivedBytesPerSecond": Metric(
            unit=Unit.BYTES_PER_S, what="received by the replica's node, without loopback"
        ),
        "networkSentBytesPerSecond": Metric(unit=Unit.BYTES_PER_S, what="sent by the replica's node, without loopback"),
        "gpuUtilization": Metric(unit=Unit.SHARE, what="of the time in which a kernel ran, over the replica's GPUs"),
        "gpuMemoryBytes": Metric(unit=Unit.BYTES, what="memory in use on the replica's GPUs"),
        "step": Metric(unit=Unit.STEPS, what="steps taken, as the program reports"),
        "stepsPerSecond": Metric(unit=Unit.STEPS_PER_S, what="steps per second, as the program reports"),
        "examplesPerSecond": Metric(unit=Unit.EXAMPLES_PER_S, what="examples per second, as the program reports"),
    }
)
"""The measured metrics, by name. The program's own metrics are added with `PROGRAM_PREFIX`."""


def unit_of(name: str) -> Unit:
    """Returns the unit of a metric; the program's own metrics have none."""
    known = METRICS.get(name)
    return Unit.NONE if known is None else known.unit


@final
@dataclass(frozen=True, kw_only=True)
class Sample:
    """One measurement of all metrics of a replica.

    Attributes:
        time_s: the time of the measurement, in seconds since 1970 UTC.
        values: the measured values, by the name of the metric; all are finite.
    """

    time_s: float
    values: Mapping[str, float]


def encode_sample(sample: Sample) -> bytes:
    """Returns a sample as a line of JSON."""
    return json.dumps([round(sample.time_s, 3), dict(sample.values)], separators=(",", ":")).encode() + b"\n"


def decode_sample(line: bytes) -> Sample | None:
    """Parses a line that `encode_sample` wrote; returns None for any other line."""
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
        name: the name of the metric.
        points: pairs of the start of an interval, in seconds since 1970 UTC, and the mean over it. Intervals without a
            measurement are left out.
    """

    name: str
    points: tuple[tuple[float, float], ...]


def series_of(
    samples: Iterable[Sample], *, names: Sequence[str], since_s: float, until_s: float, interval_s: float
) -> list[Series]:
    """Aggregates samples to series, with one point per interval.

    Args:
        samples: the samples, in any order.
        names: the names of the metrics. If empty, all metrics that are found; but once there are `MAX_SERIES` series,
            no further metric of the program is added.
        since_s: the start of the first interval, in seconds since 1970 UTC.
        until_s: the end of the period; samples at this time or later are ignored.
        interval_s: the length of an interval, in seconds.
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
    """Returns the mean; if the sum of a diverging program's values overflows, the largest float with the sum's sign."""
    return total / count if math.isfinite(total) else math.copysign(sys.float_info.max, total)
