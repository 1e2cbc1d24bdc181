"""What the queue says of its jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from lockstep.errors import ConfigError
from lockstep.jobs.scheduling import ProjectUse, Waiting
from lockstep.service.store import JobRecord


@final
@dataclass(frozen=True, kw_only=True)
class Unreadable:
    """A queued job that this version cannot read.

    Attributes:
        job: the job.
        error: the error of reading it.
    """

    job: JobRecord
    error: ConfigError


@final
@dataclass(frozen=True, kw_only=True)
class QueuePosition:
    """The position that a job that is not recorded would have in the queue.

    Attributes:
        needs: descriptions of what its replicas need from nodes.
        waits: its position and what it would wait for; None if it would start at once.
    """

    needs: tuple[str, ...]
    waits: Waiting | None


@final
@dataclass(frozen=True, kw_only=True)
class QueuePage:
    """A page of the queue, and what projects use.

    Attributes:
        uids: the uids of the queued jobs, in the order of the queue.
        num_queued: the number of all queued jobs.
        uses: what the running jobs of each project use, for projects with some.
        held: the projects that may start no jobs because of what they have spent, each with the reason.
    """

    uids: tuple[str, ...]
    num_queued: int
    uses: Mapping[str, ProjectUse]
    held: Mapping[str, str]
