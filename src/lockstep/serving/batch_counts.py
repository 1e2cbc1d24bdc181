"""Counts of a prediction server's batches, by size. The server reports them in its heartbeats."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from itertools import accumulate
from typing import Final, final

LIMITS: Final = (1, 2, 4, 8, 16, 32, 64)
"""The upper limits of the classes of sizes, in instances. A last class has no limit."""
_BATCHES: Final = "batches"
_INSTANCES: Final = "instances"


def _name(limit: int) -> str:
    return f"batchesUpTo{limit}"


@final
class BatchCounts:
    """The number of batches so far, and of the instances in them."""

    def __init__(self) -> None:
        self._sizes = [0] * (len(LIMITS) + 1)
        self._num_instances = 0

    def add(self, num_instances: int) -> None:
        """Counts one batch."""
        self._sizes[bisect_left(LIMITS, num_instances)] += 1
        self._num_instances += num_instances

    def to_metrics(self) -> dict[str, int]:
        """Returns the metrics of a heartbeat: for each limit, how many batches have at most so many instances."""
        *limited, num_batches = accumulate(self._sizes)
        named = {_name(limit): number for limit, number in zip(LIMITS, limited, strict=True)}
        return {_BATCHES: num_batches, _INSTANCES: self._num_instances, **named}


def read_buckets(metrics: Mapping[str, float]) -> tuple[list[tuple[str, float]], float] | None:
    """Reads what `BatchCounts.to_metrics` has written, as the buckets of a histogram.

    Args:
        metrics: the metrics of a heartbeat.

    Returns:
        The limits with the number of batches up to each, and the number of all instances; None if there are none.
    """
    names = {**{str(limit): _name(limit) for limit in LIMITS}, "+Inf": _BATCHES}
    if not metrics.keys() >= {_INSTANCES, *names.values()}:
        return None
    return [(limit, metrics[name]) for limit, name in names.items()], metrics[_INSTANCES]
