"""The forms of jobs, their replicas, events, logs and metrics."""

from __future__ import annotations

from typing import Any, NotRequired

from pydantic import with_config
from typing_extensions import TypedDict

from lockstep.jobs.running.states import JobState
from lockstep.service.api.forms.answers import STRICT
from lockstep.service.api.forms.billing import BillForm, NodeCostsForm


@with_config(STRICT)
class RestartForm(TypedDict):
    """A new launch of a lost replica, while the rest of its gang continued."""

    number: int
    time: float
    reason: str


@with_config(STRICT)
class ProgressForm(TypedDict):
    """The progress of a program."""

    time: float
    step: int | None
    epoch: int | None
    metrics: dict[str, float]
    notFinite: list[str]
    stepsPerSecond: float | None
    examplesPerSecond: float | None
    text: str


@with_config(STRICT)
class ProfileForm(TypedDict):
    """A profile of a replica's training steps. The files are artifacts of the job."""

    id: str
    state: str
    numSteps: int
    files: list[str]
    problem: str | None


@with_config(STRICT)
class ReplicaForm(TypedDict):
    """The status of a replica."""

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
    profile: NotRequired[ProfileForm | None]
    end: str | None
    numLogEntries: int | None
    restarts: NotRequired[list[RestartForm]]


@with_config(STRICT)
class AttemptForm(TypedDict):
    """An attempt of a job. Amounts are decimal strings, and those of all attempts sum to the job's bill."""

    attempt: int
    startTime: str | None
    endTime: str | None
    latestEndTime: str | None
    endReason: str | None
    machineSeconds: str
    mlUnits: str | None
    costUsd: str | None


@with_config(STRICT)
class MetricForm(TypedDict):
    """``GoogleCloudMlV1_HyperparameterOutput_HyperparameterMetric``: a value of a search's metric, at a step."""

    trainingStep: str
    objectiveValue: float


@with_config(STRICT)
class HyperparameterOutputForm(TypedDict):
    """``GoogleCloudMlV1__HyperparameterOutput``: a trial of a search, with its own values of the parameters."""

    trialId: str
    hyperparameters: dict[str, str]
    startTime: NotRequired[str]
    endTime: NotRequired[str]
    state: JobState
    finalMetric: NotRequired[MetricForm]
    allMetrics: NotRequired[list[MetricForm]]
    isTrialStoppedEarly: bool


@with_config(STRICT)
class TrialForm(TypedDict):
    """A trial of a search as the contract has it, with the name of its job, its cost so far, and why it ended."""

    trialId: str
    hyperparameters: dict[str, str]
    startTime: NotRequired[str]
    endTime: NotRequired[str]
    state: JobState
    finalMetric: NotRequired[MetricForm]
    allMetrics: NotRequired[list[MetricForm]]
    isTrialStoppedEarly: bool
    jobId: str
    costUsd: str | None
    endReason: str | None
    metricRun: str | None


@with_config(STRICT)
class TrialListForm(TypedDict):
    """A page of the trials of a search, the best first."""

    trials: list[TrialForm]
    nextPageToken: NotRequired[str]


@with_config(STRICT)
class TrainingOutputForm(TypedDict, total=False):
    """``GoogleCloudMlV1__TrainingOutput``."""

    consumedMLUnits: float
    webAccessUris: dict[str, str]
    isHyperparameterTuningJob: bool
    hyperparameterMetricTag: str
    completedTrialCount: str
    trials: list[HyperparameterOutputForm]


@with_config(STRICT)
class PredictionOutputForm(TypedDict):
    """``GoogleCloudMlV1__PredictionOutput``. Counts are strings, as the contract writes an int64."""

    outputPath: str
    predictionCount: str
    errorCount: str
    nodeHours: NotRequired[float]


@with_config(STRICT)
class JobWebhookForm(TypedDict):
    """The state of a job's webhook: why deliveries fail, since when, and how many events were dropped."""

    place: str
    problem: str | None
    since: float | None
    numDropped: int


@with_config(STRICT)
class OwnJobForm(TypedDict):
    """Lockstep's own fields of a job, which are not in the contract."""

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
    """``GoogleCloudMlV1__Job``, either training or batch prediction. The input is as requested."""

    jobId: str
    trainingInput: NotRequired[dict[str, Any]]
    predictionInput: NotRequired[dict[str, Any]]
    createTime: str
    state: JobState
    trainingOutput: NotRequired[TrainingOutputForm]
    predictionOutput: NotRequired[PredictionOutputForm]
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
    """An event of a job, with the time when it happened, as far as known, and the time when it was recorded."""

    time: str
    recordedTime: str
    kind: str
    state: str
    detail: str


@with_config(STRICT)
class JobModelForm(TypedDict):
    """A model that a job saved."""

    url: str
    sizeBytes: str


@with_config(STRICT)
class JobModelListForm(TypedDict):
    """All models that a job saved."""

    models: list[JobModelForm]


@with_config(STRICT)
class ArtifactForm(TypedDict):
    """A file that a job left. The path begins with the name of the output."""

    path: str
    output: str
    sizeBytes: int
    updateTime: str | None


@with_config(STRICT)
class ArtifactListForm(TypedDict):
    """A page of the files that a job left."""

    artifacts: list[ArtifactForm]
    nextPageToken: NotRequired[str]


@with_config(STRICT)
class ScalarTagForm(TypedDict):
    """A curve. Points are a step, its time in seconds since 1970, and its value; null if that is not finite."""

    tag: str
    points: list[list[float | None]]


@with_config(STRICT)
class ScalarRunForm(TypedDict):
    """The curves of a run: of a folder of TensorBoard files."""

    run: str
    tags: list[ScalarTagForm]


@with_config(STRICT)
class ScalarsForm(TypedDict):
    """The curves of a job, what could not be read of them, and whether the next request will have read more."""

    runs: list[ScalarRunForm]
    notes: list[str]
    more: bool


@with_config(STRICT)
class EventListForm(TypedDict):
    """All events of a job."""

    events: list[EventForm]


@with_config(STRICT)
class LogResourceForm(TypedDict):
    """The origin of a log entry: Cloud Logging's ``MonitoredResource``."""

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
    """A page of log entries, with the cursor for the next page; and with that for the page before, if it was asked."""

    entries: list[LogEntryForm]
    cursor: str
    more: bool
    complete: bool
    numMissing: int
    earlier: NotRequired[str]
    replicas: NotRequired[list[str]]
    server: NotRequired[str]


@with_config(STRICT)
class SeriesForm(TypedDict):
    """One metric of one replica over time. Points are pairs of an interval's start and its mean.

    Series of a version say which prediction server they are of.
    """

    server: NotRequired[str]
    replica: str
    attempt: int
    name: str
    unit: str
    points: list[list[float]]


@with_config(STRICT)
class SeriesPageForm(TypedDict):
    """A page of series: those of some replicas."""

    series: list[SeriesForm]
    intervalSeconds: float
    nextPageToken: NotRequired[str]
