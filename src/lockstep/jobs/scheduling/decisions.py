"""Defines what the scheduler returns: its decisions, and why a job waits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from lockstep.jobs.scheduling.demands import QueuedJob


@final
@dataclass(frozen=True, kw_only=True)
class Start:
    """A job that starts now.

    Attributes:
        job: the job.
        nodes: the node of each replica, in the order of the gang's demands.
    """

    job: QueuedJob
    nodes: tuple[str, ...]


@final
@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A job that does not start now; jobs of the same shape behind it do not start either.

    Attributes:
        uid: the uid of the job.
        reason: why it does not start.
    """

    uid: str
    reason: str


@final
@dataclass(frozen=True, kw_only=True)
class Decisions:
    """The decisions of one call.

    Attributes:
        starts: the jobs that start, in this order.
        refusals: the jobs that were considered and do not start.
    """

    starts: tuple[Start, ...] = ()
    refusals: tuple[Refusal, ...] = ()


@final
@dataclass(frozen=True, kw_only=True)
class Waiting:
    """Why a job waits.

    Attributes:
        position: the job's position in the queue, from 1 (the contract's ``jobPosition``).
        reason: what the job waits for.
        start_by_s: the latest start time, in seconds since 1970 UTC. None if the job has no promise, or if a job ahead
            of it has no promise and might still take the same nodes.
    """

    position: int
    reason: str
    start_by_s: float | None = None
