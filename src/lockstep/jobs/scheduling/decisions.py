"""What a scheduler decides, and what it says of those that wait."""

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
    """A job that does not start now, and neither does any other that asks for the same behind it.

    Attributes:
        uid: the job.
        reason: why, in words.
    """

    uid: str
    reason: str


@final
@dataclass(frozen=True, kw_only=True)
class Decisions:
    """What was decided in one go.

    Attributes:
        starts: jobs that start, in this order.
        refusals: jobs that were looked at and do not.
    """

    starts: tuple[Start, ...] = ()
    refusals: tuple[Refusal, ...] = ()


@final
@dataclass(frozen=True, kw_only=True)
class Waiting:
    """Why a job waits.

    Attributes:
        position: its place among the waiting, from 1 (the contract's ``jobPosition``).
        reason: what it waits for, in words.
        start_by_s: when it starts at the latest, seconds since 1970 UTC, where it was promised that, and nobody waits
            ahead of it who has no such promise and might still take the same nodes.
    """

    position: int
    reason: str
    start_by_s: float | None = None
