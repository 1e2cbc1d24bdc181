"""Records of the database about jobs: a job, its attempts, and its events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, final

from lockstep.jobs.billing.bills import Bill
from lockstep.jobs.running.order_parts import FileOrder
from lockstep.jobs.running.states import JobState
from lockstep.jobs.security.access import HOME_LABEL
from lockstep.service.store.control.moves import Move
from lockstep.service.store.control.replicas import ReplicaRecord
from lockstep.service.store.control.trials import TrialRecord


@final
class JobKind(StrEnum):
    """Who starts a job, and for what."""

    TRAINING = "training"
    """Somebody submitted it: a training job, or a batch prediction."""
    SERVER = "server"
    """The service starts it as one of a version's prediction servers, and ends it."""
    SEARCH = "search"
    """Somebody submitted it: a search over hyperparameters. It has no replicas of its own; its trials have."""
    TRIAL = "trial"
    """The service starts it as one of a search's trials. It is read as a job, and not listed as one."""


@final
@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """A job in the database. Times are in seconds since 1970 UTC.

    Attributes:
        uid: the permanent, unique id of the job, also on the engine.
        project: the project that owns the job.
        job_id: the name of the job within the project.
        kind: the kind of the job.
        version_uid: the uid of the version that a prediction server serves; None for other jobs.
        search_uid: the uid of the search that a trial belongs to; None for other jobs.
        trial: what makes a trial different from the others, and what it has measured; None for other jobs.
        training_input: the training input, in the contract's JSON; of a batch prediction, what it was translated into.
        prediction_input: the prediction input of a batch prediction, in the contract's JSON; None for other jobs.
        files: the files that a batch prediction's programs need in their working folders.
        labels: the labels of the job.
        state: the state of the job.
        version: the number of changes by its owner; the contract's etag is computed from it.
        revision: the number of all changes of the job and its replicas, except of what running replicas report.
        attempt: the number of the current attempt, from 0.
        priority: the priority in the queue; jobs with a higher number start earlier.
        max_wait_time_s: the maximum time in the queue, in seconds; None for no limit.
        create_time_s: the time of its creation.
        start_time_s: the time when it first became RUNNING; None if it never did.
        run_start_time_s: the time when the current attempt became RUNNING; None if it has not.
        end_time_s: the time of its end; None before it.
        end_reason: the `lockstep.jobs.running.ends.EndReason` of a job that did not succeed, as text.
        num_restarts: the number of restarts.
        candidate: the number of the candidate that it uses or will use; 0 for the machines that it requests.
        provisioning_time_s: the time since when it waits for machines to be provisioned; None if it does not.
        error_message: the error message of a failed job.
        simulated: whether anything of the job is simulated.
        gang_order: the last order for its gang, as JSON; None if there is none.
        gang_released: whether the engine holds nothing for the job any more.
        replicas: the replicas, as far as the engine has reported them in the current attempt.
        moves: the moves of replicas in the current attempt, in order.
        bill: the bill, without its lines; None before the job's end.
        outputs: the bucket URLs by kind: model, checkpoints, tensorboard, logs.
        submitted_by: the label of the submitter.
        drain_time_s: the time since when a prediction server gets no further requests, because it will be ended; None
            if it gets requests.
    """

    uid: str
    project: str
    job_id: str
    kind: JobKind = JobKind.TRAINING
    version_uid: str | None = None
    search_uid: str | None = None
    trial: TrialRecord | None = None
    training_input: Mapping[str, Any]
    prediction_input: Mapping[str, Any] | None = None
    files: tuple[FileOrder, ...] = ()
    labels: Mapping[str, str]
    state: JobState
    version: int
    revision: int = 0
    attempt: int = 0
    priority: int = 0
    max_wait_time_s: float | None = None
    create_time_s: float
    start_time_s: float | None = None
    run_start_time_s: float | None = None
    end_time_s: float | None = None
    end_reason: str | None = None
    num_restarts: int = 0
    candidate: int = 0
    provisioning_time_s: float | None = None
    error_message: str | None = None
    simulated: bool = False
    gang_order: Mapping[str, Any] | None = None
    gang_released: bool = False
    replicas: tuple[ReplicaRecord, ...] = ()
    moves: tuple[Move, ...] = ()
    bill: Bill | None = None
    outputs: Mapping[str, str] = field(default_factory=dict)
    submitted_by: str = HOME_LABEL
    drain_time_s: float | None = None


@final
@dataclass(frozen=True, kw_only=True)
class AttemptRecord:
    """An attempt of a job that is over. Times are in seconds since 1970 UTC.

    Attributes:
        attempt: the number of the attempt, from 0.
        candidate: the number of the candidate that it used.
        start_time_s: the time when it became RUNNING; None if it never did.
        end_time_s: the time of its end, up to which it is billed.
        latest_end_time_s: if the end was not recorded, the time when the attempt was certainly over; it ended between
            `end_time_s` and this time. None if the end is known.
        end_reason: the end reason; None if the attempt succeeded.
        machines: the name in the ledger of each replica's last node; empty if the nodes are not in the ledger.
        moves: the moves of replicas in the attempt, in order.
    """

    attempt: int
    candidate: int = 0
    start_time_s: float | None
    end_time_s: float
    latest_end_time_s: float | None = None
    end_reason: str | None
    machines: tuple[str, ...] = ()
    moves: tuple[Move, ...] = ()

    @property
    def all_machines(self) -> frozenset[str]:
        """The names of all nodes that a replica had."""
        return frozenset((*self.machines, *(move.machine for move in self.moves)))


@final
@dataclass(frozen=True, kw_only=True)
class RecordedEvent:
    """An event of a job.

    Attributes:
        seq: the number of the event; it increases from event to event.
        time_s: the time of the event, as far as known, in seconds since 1970 UTC; never before the previous event.
        recorded_time_s: the time when the event was recorded.
        kind: the kind of the event, such as ``started``.
        state: the state of the job after the event.
        detail: a description of the cause.
    """

    seq: int
    time_s: float
    recorded_time_s: float
    kind: str
    state: str
    detail: str


@final
@dataclass(frozen=True, kw_only=True)
class EventNote:
    """An event of a job that does not change its state.

    Attributes:
        kind: the kind of the event, a word that is not a `JobEvent`.
        detail: a description.
        time_s: the time of the event, in seconds since 1970 UTC.
    """

    kind: str
    detail: str
    time_s: float


@final
class UnfinishedJob(NamedTuple):
    """What is read of every job that is not over. There can be thousands."""

    uid: str
    """The job's uid."""
    job_id: str
    """The job's name within its project."""
    state: JobState
    """The job's state."""
