"""The forms of what an operator and the owner of a model watch: the queue, quotas, prediction servers, requests."""

from __future__ import annotations

from typing import NotRequired

from pydantic import with_config
from typing_extensions import TypedDict

from lockstep.jobs.running.states import JobState
from lockstep.service.api.forms.answers import STRICT


@with_config(STRICT)
class QueuedJobForm(TypedDict):
    """A job or a prediction server in the queue. ``startByTime`` is a promise; None if there is none."""

    project: str
    jobId: str
    kind: str
    priority: int
    createTime: str
    position: int
    reason: str
    startByTime: str | None


@with_config(STRICT)
class QuotaForm(TypedDict):
    """A project's quota, and what its running jobs use of it. A limit is None where there is none."""

    project: str
    machinesLimit: int | None
    machinesInUse: int
    acceleratorsLimit: dict[str, int]
    acceleratorsInUse: dict[str, int]
    dollarsPerDay: str | None
    requestsPerSecond: float | None
    heldReason: str | None


@with_config(STRICT)
class QueueForm(TypedDict):
    """A page of the queue, in its order, and the quotas of projects."""

    jobs: list[QueuedJobForm]
    numQueued: int
    quotas: list[QuotaForm]
    nextPageToken: NotRequired[str]


@with_config(STRICT)
class ServerForm(TypedDict):
    """A prediction server of a version."""

    name: str
    state: JobState
    ready: bool
    draining: bool
    phase: str
    host: str
    createTime: str
    startTime: str | None
    waitingFor: str | None
    numRestarts: int


@with_config(STRICT)
class ServerListForm(TypedDict):
    """The first prediction servers of a version, and the number of all of them."""

    servers: list[ServerForm]
    numServers: int


@with_config(STRICT)
class MinuteForm(TypedDict):
    """The requests that were answered within a minute. ``time`` is its start, in seconds since 1970 UTC."""

    time: float
    requests: int
    errors: int
    meanLatencySeconds: float


@with_config(STRICT)
class VersionRequestsForm(TypedDict):
    """The requests for predictions from a version, for each of the last minutes with some."""

    intervalSeconds: float
    sinceTime: str
    minutes: list[MinuteForm]
