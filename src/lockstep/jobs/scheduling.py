"""Which queued jobs start now, and what the others wait for: a pure decision over what is known."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, kw_only=True)
class QueuedJob:
    """A job in the queue.

    Attributes:
        uid: the service's own identifier of it.
        project: the project that it belongs to.
        priority: 0 to 1000; a bigger number starts earlier.
        create_time_s: when it was created, seconds since 1970 UTC.
        num_replicas: how many replicas it has.
    """

    uid: str
    project: str
    priority: int = 0
    create_time_s: float
    num_replicas: int = 1


@final
@dataclass(frozen=True, kw_only=True)
class Capacity:
    """How much may run at once.

    Attributes:
        max_running_jobs: how many jobs may run at once.
        running_jobs: how many hold machines now, being prepared, running or being ended.
    """

    max_running_jobs: int
    running_jobs: int

    @property
    def num_free(self) -> int:
        """How many more jobs may start."""
        return max(0, self.max_running_jobs - self.running_jobs)


@final
@dataclass(frozen=True, kw_only=True)
class Waiting:
    """Why a job waits.

    Attributes:
        position: its place among the waiting, from 1 (the contract's ``jobPosition``).
        reason: what it waits for, in words.
    """

    position: int
    reason: str


def choose(queue: Iterable[QueuedJob], *, capacity: Capacity) -> tuple[str, ...]:
    """Decides which jobs start, in this order: the higher priority first, then first come first served.

    Args:
        queue: queued jobs in any order, each once; at least the first of the line, as many as there is room for.
        capacity: how much may run at once.
    """
    # The uid settles ties, so that two decisions over the same queue are the same.
    line = sorted(queue, key=lambda job: (-job.priority, job.create_time_s, job.uid))
    return tuple(job.uid for job in line[: capacity.num_free])


def waiting(position: int, *, capacity: Capacity) -> Waiting:
    """Says what a job waits for.

    Args:
        position: its place in the queue, from 1.
        capacity: how much may run at once.
    """
    most, running = capacity.max_running_jobs, capacity.running_jobs
    if most <= 0:
        reason = "this service is set to run no jobs"
    elif position <= capacity.num_free:
        reason = "it starts next"
    else:
        num_ends = running - most + position
        ends = "one has ended" if num_ends == 1 else f"{num_ends} have ended"
        reason = f"{running} of {most} jobs run; it starts when {ends}"
    return Waiting(position=position, reason=f"position {position}: {reason}")
