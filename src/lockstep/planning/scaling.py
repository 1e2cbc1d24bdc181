"""Simulates data-parallel training on many chips: how long a step takes, and how much time failures cost.

A step is simulated event by event. The backward pass yields gradients from the last layer to the first; each full
bucket is all-reduced while the pass goes on, one bucket at a time, as in P. Goyal et al., "Accurate, large minibatch
SGD", 2017 and in PyTorch's DistributedDataParallel (S. Li et al., 2020). All chips wait for the slowest one. Its delay
is the expected maximum of independent normal times (G. Blom, "Statistical estimates and transformed beta-variables",
1958). The time lost to failures is J. Daly's ("A higher order estimate of the optimum checkpoint interval for restart
dumps", 2006).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, final

from lockstep.planning.networks import Network, all_reduce_s

MIB: Final = 2**20
HOUR_S: Final = 3600.0
BUCKET_BYTES: Final = 25 * MIB
"""The size of a bucket in PyTorch's DistributedDataParallel and in `lockstep.CommunicationOptions`."""
BACKWARD_SHARE: Final = 2 / 3
"""The backward pass has two matrix products for each one of the forward pass."""
STRAGGLING: Final = 0.03
"""The standard deviation of a chip's time from step to step, as a share of the mean."""


@final
@dataclass(frozen=True, kw_only=True)
class Workload:
    """The work of one chip in a step.

    Attributes:
        compute_s: the time of forward and backward pass and update on one chip, without communication, in seconds.
        gradient_bytes: the size of all gradients, as they are sent, in bytes.
        rows: the number of rows of a chip's batch.
        profile: when gradients become ready: for parts of the backward pass in its order, the share of its time and
            the share of the gradients' bytes. Both sum to 1. By default, they become ready evenly.
        backward_share: the share of the backward pass in ``compute_s``.
        overlaps: whether gradients are sent during the backward pass. Otherwise, they are sent after it.
        bucket_bytes: the size of the buckets in which gradients are sent, in bytes.
    """

    compute_s: float
    gradient_bytes: float
    rows: int
    profile: Sequence[tuple[float, float]] = ((1.0, 1.0),)
    backward_share: float = BACKWARD_SHARE
    overlaps: bool = True
    bucket_bytes: float = BUCKET_BYTES

    def buckets(self) -> list[tuple[float, float]]:
        """Returns the buckets in the order in which they are sent: the time when each is full, and its bytes.

        The time is in seconds since the start of the step.
        """
        number = max(1, math.ceil(self.gradient_bytes / self.bucket_bytes))
        backward_s = self.compute_s * self.backward_share
        start_s = self.compute_s - backward_s
        found: list[tuple[float, float]] = []
        for index in range(1, number + 1):
            full = min(index * self.bucket_bytes, self.gradient_bytes)
            ready_s = start_s + backward_s * self._elapsed(full / self.gradient_bytes) if self.overlaps else None
            size = full - (index - 1) * self.bucket_bytes
            found.append((self.compute_s if ready_s is None else ready_s, size))
        return found

    def _elapsed(self, share_of_bytes: float) -> float:
        """Returns the share of the backward pass after which this share of the bytes is ready."""
        time_so_far, bytes_so_far = 0.0, 0.0
        for time_share, bytes_share in self.profile:
            if bytes_so_far + bytes_share >= share_of_bytes - 1e-12:
                within = (share_of_bytes - bytes_so_far) / bytes_share if bytes_share else 1.0
                return min(1.0, time_so_far + within * time_share)
            time_so_far, bytes_so_far = time_so_far + time_share, bytes_so_far + bytes_share
        return 1.0


@final
@dataclass(frozen=True, kw_only=True)
class Failures:
    """How often chips fail, and what that costs.

    Attributes:
        mean_time_between_s: the mean time between failures of one chip with its share of the host, in seconds.
        save_s: the time for which training waits for a checkpoint, in seconds.
        restart_s: the time from a failure until training goes on, in seconds: noticing it, new machines, restoring.
        interval_s: the time between two checkpoints in seconds; None for the optimum (Daly's first-order estimate).
    """

    mean_time_between_s: float
    save_s: float = 1.0
    restart_s: float = 300.0
    interval_s: float | None = None

    def goodput(self, num_chips: int) -> float:
        """Returns the share of the time in which training advances, between 0 and 1.

        Args:
            num_chips: the number of chips. If one of them fails, all go back to the last checkpoint.
        """
        mean_s = self.mean_time_between_s / num_chips
        interval_s = self.interval_s or max(1.0, math.sqrt(2 * self.save_s * mean_s) - self.save_s)
        exponent = (interval_s + self.save_s) / mean_s
        if exponent + self.restart_s / mean_s > 700:  # beyond the largest float
            return 0.0
        return interval_s / (mean_s * math.exp(self.restart_s / mean_s) * math.expm1(exponent))


@final
@dataclass(frozen=True, kw_only=True)
class Scaled:
    """The simulated training on a number of chips.

    Attributes:
        num_chips: the number of chips.
        step_s: the time of a step in seconds, without failures.
        compute_s: the part of it in which a chip computes.
        waiting_s: the part in which it waits for gradients after the backward pass.
        straggling_s: the part in which it waits for the slowest chip.
        goodput: the share of the time in which training advances, in spite of failures.
        rows_per_s: the rows of all chips together per second, failures included.
        efficiency: ``rows_per_s`` as a share of that of so many chips that need not communicate, wait or fail.
    """

    num_chips: int
    step_s: float
    compute_s: float
    waiting_s: float
    straggling_s: float
    goodput: float
    rows_per_s: float
    efficiency: float


def expected_maximum(num_chips: int) -> float:
    """Returns the expected maximum of so many independent standard normal numbers (Blom's approximation)."""
    return 0.0 if num_chips == 1 else NormalDist().inv_cdf((num_chips - 0.375) / (num_chips + 0.25))


def simulate(
    workload: Workload,
    *,
    num_chips: int,
    network: Network,
    algorithm: str | None = None,
    straggling: float = STRAGGLING,
    failures: Failures | None = None,
) -> Scaled:
    """Simulates training with synchronous data parallelism.

    Args:
        workload: the work of one chip in a step. It is the same for all numbers of chips, so the global batch grows.
        num_chips: the number of chips.
        network: their links.
        algorithm: how gradients are reduced; see `lockstep.planning.networks.all_reduce_s`.
        straggling: the standard deviation of a chip's compute time, as a share of it.
        failures: how often chips fail; None if they never do.
    """
    sent_s = 0.0
    for ready_s, size in workload.buckets():
        sent_s = max(sent_s, ready_s) + all_reduce_s(size, num_chips=num_chips, network=network, algorithm=algorithm)
    waiting_s = max(0.0, sent_s - workload.compute_s)
    straggling_s = straggling * workload.compute_s * expected_maximum(num_chips)
    step_s = workload.compute_s + waiting_s + straggling_s
    goodput = 1.0 if failures is None else failures.goodput(num_chips)
    return Scaled(
        num_chips=num_chips,
        step_s=step_s,
        compute_s=workload.compute_s,
        waiting_s=waiting_s,
        straggling_s=straggling_s,
        goodput=goodput,
        rows_per_s=workload.rows * num_chips / step_s * goodput,
        efficiency=workload.compute_s / step_s * goodput,
    )
