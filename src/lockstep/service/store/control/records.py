"""What the database keeps of jobs: a job, the starts of its gang, and what happened to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from lockstep.jobs.billing.bills import Bill
from lockstep.jobs.running.states import JobState
from lockstep.jobs.security.access import HOME_LABEL
from lockstep.service.store.control.moves import Move
from lockstep.service.store.control.replicas import ReplicaRecord


@final
@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """A job as the database holds it.

    Attributes:
        uid: names the job for ever, also on the engine.
        project: the project it belongs to.
        job_id: its name within the project.
        training_input: the request, in the contract's JSON.
        labels: the owner's labels.
        state: where it is in its life.
        version: counts the changes that its owner made of it; the contract's etag is made of it.
        attempt: counts the starts of its gang, from 0.
        priority: a bigger number starts earlier.
        max_wait_time_s: how long it may wait in the queue; None for as long as it takes.
        create_time_s: when it was created, seconds since 1970 UTC.
        start_time_s: when it first became RUNNING.
        run_start_time_s: when its gang last did.
        end_time_s: when it ended.
        end_reason: why it did, where it did not succeed; as `lockstep.jobs.running.ends.EndReason` writes it.
        num_restarts: how often it failed and was started again.
        candidate: which of its sets of machines it has, or is to have; 0 is what it asks for.
        provisioning_time_s: since when it waits for machines to come up; None where it does not.
        error_message: why it failed.
        simulated: whether virtual devices stand in for its accelerators.
        gang_order: what the engine was asked to place.
        gang_released: whether the engine holds nothing for it any more.
        replicas: its replicas, as far as the engine has reported them in this start of its gang.
        moves: which of them lost their machines in this start of its gang while the others ran on, in order.
        bill: what it cost, without the lines of it; None before it ended.
        outputs: bucket URLs by kind: model, checkpoints, tensorboard, logs.
        submitted_by: label of whoever created it.
    """

    uid: str
    project: str
    job_id: str
    training_input: Mapping[str, Any]
    labels: Mapping[str, str]
    state: JobState
    version: int
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


@final
@dataclass(frozen=True, kw_only=True)
class AttemptRecord:
    """One start of a job's gang that is over.

    Attributes:
        attempt: which, from 0.
        candidate: which of the job's sets of machines it had.
        start_time_s: when it became RUNNING, seconds since 1970 UTC; None if it never did.
        end_time_s: when it ended; up to here it is billed.
        latest_end_time_s: when it was gone, where nobody recorded its end: it ended between the two.
        end_reason: why it did; None for a success.
        machines: the last node of each replica, by its name in the ledger; none where nodes do not come and go.
        moves: the replicas that lost one before it, in order.
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
        """Every node that a replica had."""
        return frozenset((*self.machines, *(move.machine for move in self.moves)))


@final
@dataclass(frozen=True, kw_only=True)
class RecordedEvent:
    """One thing that happened to a job.

    Attributes:
        seq: grows from event to event.
        time_s: when it happened, as far as that is known, seconds since 1970 UTC; not before the event before it.
        recorded_time_s: when it was recorded.
        kind: what, such as ``started``.
        state: the state after it.
        detail: the cause, in words.
    """

    seq: int
    time_s: float
    recorded_time_s: float
    kind: str
    state: str
    detail: str


@final
@dataclass(frozen=True, kw_only=True)
class Note:
    """Something that happened to a job and is no change of its state.

    Attributes:
        kind: what, in a word that is no `JobEvent`.
        detail: in words.
        time_s: when, seconds since 1970 UTC.
    """

    kind: str
    detail: str
    time_s: float
