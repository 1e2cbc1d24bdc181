"""Which queued jobs start now, and what the others wait for: a pure decision over what is known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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


@final
@dataclass(frozen=True, kw_only=True)
class Decision:
    """What follows for the queue.

    Attributes:
        starts: the jobs to start, in this order.
        waiting: the others, first in line first.
    """

    starts: tuple[str, ...]
    waiting: Mapping[str, Waiting]


def decide(queue: Iterable[QueuedJob], *, capacity: Capacity) -> Decision:
    """Decides which jobs start: the higher priority first, then first come first served.

    Args:
        queue: the queued jobs in any order, each once.
        capacity: how much may run at once.
    """
    # The uid settles ties, so that two decisions over the same queue are the same.
    line = sorted(queue, key=lambda job: (-job.priority, job.create_time_s, job.uid))
    num_starts = min(len(line), max(0, capacity.max_running_jobs - capacity.running_jobs))
    running = capacity.running_jobs + num_starts
    rest = line[num_starts:]
    return Decision(
        starts=tuple(job.uid for job in line[:num_starts]),
        waiting={
            job.uid: Waiting(position=position, reason=_reason(position, running=running, capacity=capacity))
            for position, job in enumerate(rest, start=1)
        },
    )


def _reason(position: int, *, running: int, capacity: Capacity) -> str:
    most = capacity.max_running_jobs
    if most <= 0:
        return f"position {position}: this service is set to run no jobs"
    num_ends = running - most + position
    ends = "one has ended" if num_ends == 1 else f"{num_ends} have ended"
    return f"position {position}: {running} of {most} jobs run; it starts when {ends}"
