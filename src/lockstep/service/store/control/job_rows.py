"""Reads jobs and their attempts from the database."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Flag, auto
from typing import Any, Final, TypeVar, final

from sqlalchemy import ColumnElement, Connection, RowMapping, insert, select

from lockstep.jobs.running.states import TERMINAL, JobEvent, JobState
from lockstep.service.store.control.records import AttemptRecord, JobKind, JobRecord, RecordedEvent
from lockstep.service.store.control.replicas import ReplicaRecord, read_first_reports, read_replicas, split_uids
from lockstep.service.store.notifications.webhooks import note_change
from lockstep.service.store.tables import JOB_ATTEMPTS, JOB_EVENTS, JOBS

_ATTEMPT: Final = ("attempt", "candidate", "start_time_s", "end_time_s", "latest_end_time_s", "end_reason", "moves")

_SMALL: Final = (JobKind.TRAINING.value, JobKind.TRIAL.value)
"""The kinds of jobs whose costs are computed from `_COST`."""
_CHANGES: Final = frozenset(kind.value for kind in JobEvent)

_UNCHANGING: Final = ("state", "kind", "gang_released", "end_time_s")
"""What says whether the time that a job used can still change."""

_COST: Final = (
    *("uid", "project", "job_id", "training_input", "prediction_input", "labels", "version", "candidate"),
    *("simulated", "create_time_s", "start_time_s", "run_start_time_s", *_UNCHANGING),
)
"""What the costs of a job are computed from that is over, and that is no prediction server."""


Made = TypeVar("Made")


@final
@dataclass(frozen=True, kw_only=True)
class RanJob:
    """A job that ran.

    Attributes:
        job: the job; of a finished training job, only what its costs are computed from, without its replicas, order
            and bill.
        attempts: its attempts that are over, in order.
        is_final: whether neither the job's replicas nor its attempts change any more.
    """

    job: JobRecord
    attempts: tuple[AttemptRecord, ...]
    is_final: bool


class GangPart(Flag):
    """What of a job's gang is read with the job. Of a thousand replicas, each takes long to read."""

    ORDER = auto()
    """The order, which names the replicas."""
    REPLICAS = auto()
    """What the replicas have reported."""
    NONE = 0
    WHOLE = ORDER | REPLICAS


def read_jobs(
    connection: Connection, condition: ColumnElement[bool], *, gang: GangPart = GangPart.WHOLE
) -> list[JobRecord]:
    """Returns the jobs for which a condition holds, the oldest first.

    Args:
        connection: a connection within a transaction.
        condition: the condition.
        gang: what of their gangs is read. The records are empty where something is not.
    """
    columns = [column for column in JOBS.c if column is not JOBS.c.gang_order or gang & GangPart.ORDER]
    query = select(*columns).where(condition).order_by(JOBS.c.create_time_s, JOBS.c.uid)
    rows = connection.execute(query).mappings().all()
    replicas = read_replicas(connection, condition) if rows and gang & GangPart.REPLICAS else {}
    return [_record(row, replicas=replicas.get(row["uid"], ())) for row in rows]


def read_shown_jobs(connection: Connection, uids: Collection[str]) -> list[JobRecord]:
    """Returns jobs as a list shows them, the oldest first.

    A job that is over has a bill, and no replica but the first that reported progress, which the list shows. The cost
    so far of another job is computed from all of its replicas, so it has all.

    Args:
        connection: a connection within a transaction.
        uids: the uids of the jobs.
    """
    if not uids:
        return []
    query = select(JOBS).where(JOBS.c.uid.in_(uids)).order_by(JOBS.c.create_time_s, JOBS.c.uid)
    rows = connection.execute(query).mappings().all()
    over = [row["uid"] for row in rows if JobState(row["state"]) in TERMINAL and row["bill"] is not None]
    others = [row["uid"] for row in rows if row["uid"] not in set(over)]
    replicas = read_first_reports(connection, over) if over else {}
    if others:
        replicas |= read_replicas(connection, JOBS.c.uid.in_(others))
    return [_record(row, replicas=replicas.get(row["uid"], ())) for row in rows]


def read_ran(
    connection: Connection,
    condition: ColumnElement[bool],
    *,
    make: Callable[[RanJob], Made],
    known: Callable[[str, int], Made | None],
) -> list[Made]:
    """Returns what is made of the jobs for which a condition holds, the oldest first.

    Args:
        connection: a connection within a transaction.
        condition: the condition.
        make: makes it. The jobs are read and made a few at a time, so that there are never many records.
        known: is given the uid and the version of a job, and returns what was made of it before; None to read the job.
    """
    columns = (JOBS.c[name] for name in ("uid", "version", *_UNCHANGING))
    query = select(*columns).where(condition).order_by(JOBS.c.create_time_s, JOBS.c.uid)
    found: dict[str, Made | None] = {}
    final: set[str] = set()
    small: list[str] = []
    whole: list[str] = []
    for row in connection.execute(query):
        uid = row.uid
        found[uid] = known(uid, row.version)
        if found[uid] is None:
            if row.gang_released and row.end_time_s is not None and JobState(row.state) in TERMINAL:
                final.add(uid)
            (small if uid in final and row.kind in _SMALL else whole).append(uid)
    for uids, read in ((small, _read_costs), (whole, read_jobs)):
        for some in split_uids(uids):
            attempts = _read_attempts(connection, some)
            for job in read(connection, some):
                own = tuple(attempts.get(job.uid, ()))
                found[job.uid] = make(RanJob(job=job, attempts=own, is_final=job.uid in final))
    return [made for made in found.values() if made is not None]


def record_event(
    connection: Connection,
    uid: str,
    kind: str,
    *,
    state: JobState = JobState.QUEUED,
    detail: str,
    time_s: float,
    happened_time_s: float | None = None,
) -> None:
    """Records an event of a job.

    Args:
        connection: a connection within a transaction.
        uid: the uid of the job.
        kind: the kind of the event.
        state: the state of the job after the event.
        detail: a description of the cause.
        time_s: the time of recording, in seconds since 1970 UTC.
        happened_time_s: the time when it happened; None for the time of recording.
    """
    values = {"kind": str(kind), "state": state.value, "detail": detail}
    recorded = insert(JOB_EVENTS).values(job_uid=uid, time_s=time_s, happened_time_s=happened_time_s, **values)
    seq = connection.execute(recorded.returning(JOB_EVENTS.c.seq)).scalar_one()
    if kind in _CHANGES:
        note_change(connection, uid, seq=seq)


def read_events(connection: Connection, uid: str) -> list[RecordedEvent]:
    """Returns a job's events, the oldest first."""
    query = select(JOB_EVENTS).where(JOB_EVENTS.c.job_uid == uid).order_by(JOB_EVENTS.c.seq)
    found: list[RecordedEvent] = []
    for row in connection.execute(query).mappings():
        happened_s = row["time_s"] if row["happened_time_s"] is None else row["happened_time_s"]
        found.append(
            RecordedEvent(
                **{name: row[name] for name in ("seq", "kind", "state", "detail")},
                time_s=max(happened_s, found[-1].time_s) if found else happened_s,
                recorded_time_s=row["time_s"],
            )
        )
    return found


def read_state(connection: Connection, uid: str) -> JobState:
    """Returns a job's state."""
    return JobState(connection.execute(select(JOBS.c.state).where(JOBS.c.uid == uid)).scalar_one())


def add_attempt(connection: Connection, uid: str, ended: AttemptRecord) -> None:
    """Records an attempt that has ended."""
    columns = {name: getattr(ended, name) for name in _ATTEMPT}
    connection.execute(insert(JOB_ATTEMPTS).values(job_uid=uid, **columns, machines=list(ended.machines)))


def attempt_record(row: RowMapping) -> AttemptRecord:
    """Converts a row to an attempt."""
    return AttemptRecord(**{name: row[name] for name in _ATTEMPT}, machines=tuple(row["machines"]))


def _read_costs(connection: Connection, condition: ColumnElement[bool]) -> list[JobRecord]:
    query = select(*(JOBS.c[name] for name in _COST)).where(condition)
    return [_record(row, replicas=()) for row in connection.execute(query).mappings()]


def _read_attempts(connection: Connection, of: ColumnElement[bool]) -> dict[str, list[AttemptRecord]]:
    table = JOB_ATTEMPTS.c
    query = select(JOB_ATTEMPTS).join(JOBS, JOBS.c.uid == table.job_uid).where(of)
    query = query.order_by(table.job_uid, table.attempt)
    found: dict[str, list[AttemptRecord]] = {}
    for row in connection.execute(query).mappings():
        found.setdefault(row["job_uid"], []).append(attempt_record(row))
    return found


def _record(row: RowMapping, *, replicas: tuple[ReplicaRecord, ...]) -> JobRecord:
    columns: dict[str, Any] = {**row, "state": JobState(row["state"]), "kind": JobKind(row["kind"])}
    columns.pop("is_submitted", None)  # the kind says so, too; the column is there for indexes
    return JobRecord(**columns, replicas=replicas)
