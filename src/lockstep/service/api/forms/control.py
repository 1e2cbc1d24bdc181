"""Jobs, and what there is of them."""

from __future__ import annotations

from typing import Any, NotRequired

from pydantic import with_config
from typing_extensions import TypedDict

from lockstep.jobs.running.states import JobState
from lockstep.service.api.forms.answers import STRICT
from lockstep.service.api.forms.billing import BillForm, NodeCostsForm


@with_config(STRICT)
class RestartForm(TypedDict):
    """That a replica was launched again alone."""

    number: int
    time: float
    reason: str


@with_config(STRICT)
class ProgressForm(TypedDict):
    """How far a program is."""

    time: float
    step: int | None
    epoch: int | None
    metrics: dict[str, float]
    notFinite: list[str]
    stepsPerSecond: float | None
    examplesPerSecond: float | None
    text: str


@with_config(STRICT)
class ReplicaForm(TypedDict):
    """How a replica is."""

    name: str
    phase: str
    machine: str
    host: str
    pid: int | None
    placedTime: float | None
    startedTime: float | None
    endedTime: float | None
    seenTime: NotRequired[float | None]
    cpuSeconds: float
    wallSeconds: float
    peakMemoryBytes: int
    metrics: dict[str, float]
    progress: ProgressForm | None
    end: str | None
    numLogEntries: int | None
    restarts: NotRequired[list[RestartForm]]


@with_config(STRICT)
class AttemptForm(TypedDict):
    """One start of a job's gang; amounts as decimal strings, which add up to the job's bill."""

    attempt: int
    startTime: str | None
    endTime: str | None
    latestEndTime: str | None
    endReason: str | None
    machineSeconds: str
    mlUnits: str | None
    costUsd: str | None


@with_config(STRICT)
class TrainingOutputForm(TypedDict, total=False):
    """``GoogleCloudMlV1__TrainingOutput``."""

    consumedMLUnits: float
    webAccessUris: dict[str, str]


@with_config(STRICT)
class JobWebhookForm(TypedDict):
    """How a webhook of a job is: why it is not told, since when, and of how many changes it never was."""

    place: str
    problem: str | None
    since: float | None
    numDropped: int


@with_config(STRICT)
class OwnJobForm(TypedDict):
    """What the contract has no place for in a job."""

    simulated: bool
    waitingFor: str | None
    endReason: str | None
    numRestarts: int
    submittedBy: str
    replicas: list[ReplicaForm]
    progress: ProgressForm | None
    outputs: dict[str, str]
    bill: BillForm | None
    accrued: BillForm | None
    attempts: list[AttemptForm] | None
    nodes: NodeCostsForm | None
    webhooks: list[JobWebhookForm] | None


@with_config(STRICT)
class JobForm(TypedDict):
    """``GoogleCloudMlV1__Job``; its ``trainingInput`` is as it was asked for."""

    jobId: str
    trainingInput: dict[str, Any]
    createTime: str
    state: JobState
    trainingOutput: TrainingOutputForm
    etag: str
    labels: NotRequired[dict[str, str]]
    startTime: NotRequired[str]
    endTime: NotRequired[str]
    errorMessage: NotRequired[str]
    jobPosition: NotRequired[str]
    lockstep: OwnJobForm


@with_config(STRICT)
class JobListForm(TypedDict):
    """A page of jobs."""

    jobs: list[JobForm]
    nextPageToken: NotRequired[str]


@with_config(STRICT)
class EventForm(TypedDict):
    """Something that happened to a job: when it did, as far as is known, and when that was recorded."""

    time: str
    recordedTime: str
    kind: str
    state: str
    detail: str


@with_config(STRICT)
class JobModelForm(TypedDict):
    """A model that a job left."""

    url: str
    sizeBytes: str


@with_config(STRICT)
class JobModelListForm(TypedDict):
    """All models that a job left."""

    models: list[JobModelForm]


@with_config(STRICT)
class EventListForm(TypedDict):
    """All that happened to a job."""

    events: list[EventForm]


@with_config(STRICT)
class LogResourceForm(TypedDict):
    """Where a log entry is of."""

    type: str
    labels: dict[str, str]


@with_config(STRICT)
class LogEntryForm(TypedDict):
    """Cloud Logging's ``LogEntry``."""

    insertId: str
    timestamp: str
    severity: str
    textPayload: str
    resource: LogResourceForm
    labels: dict[str, str]


@with_config(STRICT)
class LogPageForm(TypedDict):
    """Entries of a log, and where the next ones begin."""

    entries: list[LogEntryForm]
    cursor: str
    more: bool
    complete: bool
    numMissing: int


@with_config(STRICT)
class SeriesForm(TypedDict):
    """One metric of one replica over time: pairs of an interval's beginning and its mean."""

    replica: str
    attempt: int
    name: str
    unit: str
    points: list[list[float]]


@with_config(STRICT)
class SeriesPageForm(TypedDict):
    """Series of some replicas."""

    series: list[SeriesForm]
    intervalSeconds: float
    nextPageToken: NotRequired[str]
