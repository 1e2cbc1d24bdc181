"""Jobs in the database: every change of state is one transaction, recorded with its time and cause."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Row,
    RowMapping,
    Text,
    and_,
    cast,
    func,
    insert,
    or_,
    select,
    true,
    tuple_,
    update,
)
from sqlalchemy.exc import IntegrityError

from lockstep.errors import ConflictError, NotFoundError
from lockstep.jobs.billing.bills import Bill
from lockstep.jobs.lists.filters import JobBounds
from lockstep.jobs.running.states import TERMINAL, JobEvent, JobState, next_state
from lockstep.jobs.security.access import HOME_LABEL
from lockstep.service.store.control.records import AttemptRecord, JobRecord, Note, RecordedEvent
from lockstep.service.store.control.replicas import ReplicaRecord, read_replicas, write_replicas
from lockstep.service.store.database import POSTGRESQL, Guard, reading, unguarded, writing
from lockstep.service.store.notifications.webhooks import NewWebhook, add_job_webhooks
from lockstep.service.store.tables import JOB_ATTEMPTS, JOB_EVENTS, JOBS

_QUEUED: Final = JobState.QUEUED.value
_UNFINISHED: Final = tuple(state.value for state in JobState if state not in TERMINAL)
_DOCUMENTS: Final = {"trainingInput": JOBS.c.training_input, "labels": JOBS.c.labels}
"""Fields that are stored as they are, in JSON, with all but ASCII escaped."""
_ESCAPE: Final = "\\u"
_TEXT: Final = Text().with_variant(Text(collation="C"), POSTGRESQL)
"""Of which ASCII alone has upper and lower case, whatever the database's language is."""
_ATTEMPT: Final = ("attempt", "candidate", "start_time_s", "end_time_s", "latest_end_time_s", "end_reason", "moves")
_PLACED: Final = tuple(state for state in _UNFINISHED if state != _QUEUED)


@final
class JobStore:
    """Jobs and their events. Thread-safe; each method is one transaction.

    Args:
        engine: the opened database.
        clock: seconds since 1970 UTC.
        guard: called in each transaction that writes, before it does; may forbid it by raising.
    """

    def __init__(self, engine: Engine, *, clock: Callable[[], float] = time.time, guard: Guard = unguarded) -> None:
        self._engine = engine
        self._clock = clock
        self._guard = guard

    def create(
        self,
        *,
        project: str,
        job_id: str,
        training_input: Mapping[str, Any],
        labels: Mapping[str, str],
        simulated: bool,
        outputs: Mapping[str, str],
        priority: int = 0,
        max_wait_time_s: float | None = None,
        submitted_by: str = HOME_LABEL,
        webhooks: Sequence[NewWebhook] = (),
    ) -> JobRecord:
        """Records a new job as QUEUED.

        Args:
            project: the project it belongs to.
            job_id: its name within the project.
            training_input: the request, in the contract's JSON.
            labels: the owner's labels.
            simulated: whether virtual devices stand in for its accelerators.
            outputs: bucket URLs by kind.
            priority: a bigger number starts earlier.
            max_wait_time_s: how long it may wait in the queue; None for as long as it takes.
            submitted_by: label of whoever creates it.
            webhooks: who is told of its states.

        Raises:
            ConflictError: the project has a job of this name.
        """
        uid = uuid.uuid4().hex
        now_s = self._clock()
        values = {
            "uid": uid,
            "project": project,
            "job_id": job_id,
            "training_input": dict(training_input),
            "labels": dict(labels),
            "state": JobState.QUEUED.value,
            "priority": priority,
            "max_wait_time_s": max_wait_time_s,
            "create_time_s": now_s,
            "simulated": simulated,
            "outputs": dict(outputs),
            "submitted_by": submitted_by,
        }
        try:
            with writing(self._engine, guard=self._guard) as connection:
                connection.execute(insert(JOBS).values(values))
                add_job_webhooks(connection, uid, webhooks=webhooks, now_s=now_s)
                self._record(
                    connection, uid, JobEvent.ENQUEUED, JobState.QUEUED, f"submitted by {submitted_by}", time_s=now_s
                )
        except IntegrityError:
            raise ConflictError(
                f"project {project} has a job {job_id!r} already", action="choose another name"
            ) from None
        return self.get(project=project, job_id=job_id)

    def get(self, *, project: str, job_id: str) -> JobRecord:
        """Returns a job.

        Raises:
            NotFoundError: there is none of this name.
        """
        found = self._oldest_first(and_(JOBS.c.project == project, JOBS.c.job_id == job_id))
        if not found:
            raise NotFoundError(f"project {project} has no job {job_id!r}", action="see `lockstep jobs`")
        return found[0]

    def scan(
        self,
        *,
        project: str,
        bounds: JobBounds,
        columns: Collection[str],
        size: int,
        before: tuple[float, str] | None = None,
    ) -> Sequence[Row[Any]]:
        """Returns some columns of up to `size` jobs of a project, the newest first.

        Args:
            project: the project.
            bounds: what has to be true of them.
            columns: which columns, beside ``create_time_s`` and ``uid``.
            size: how many at the most.
            before: creation time and uid of the last job of the page before.
        """
        place = tuple_(JOBS.c.create_time_s, JOBS.c.uid)
        names = sorted({"create_time_s", "uid", *columns})
        query = select(*(JOBS.c[name] for name in names)).where(JOBS.c.project == project, *_within(bounds))
        if before is not None:
            query = query.where(place < before)
        query = query.order_by(JOBS.c.create_time_s.desc(), JOBS.c.uid.desc()).limit(size)
        with reading(self._engine) as connection:
            return connection.execute(query).all()

    def get_by_uid(self, uid: str) -> JobRecord:
        """Returns a job by the service's own identifier of it; it has to be there."""
        with reading(self._engine) as connection:
            return _job(connection, uid)

    def active_states(self) -> dict[str, JobState]:
        """Returns the states of all jobs that wait, and of those that `placed_jobs` returns, by uid."""
        held = and_(JOBS.c.gang_released.is_(False), JOBS.c.state != _QUEUED)
        query = select(JOBS.c.uid, JOBS.c.state).where(or_(JOBS.c.state.in_(_UNFINISHED), held))
        with reading(self._engine) as connection:
            return {uid: JobState(state) for uid, state in connection.execute(query)}

    def overdue(self) -> list[JobRecord]:
        """Returns the queued jobs that have waited for longer than they may."""
        return self._oldest_first(
            and_(JOBS.c.state == _QUEUED, JOBS.c.create_time_s + JOBS.c.max_wait_time_s < self._clock())
        )

    def awaiting_machines(self) -> list[JobRecord]:
        """Returns the queued jobs whose machines could not be had."""
        return self._oldest_first(and_(JOBS.c.state == _QUEUED, JOBS.c.provisioning_time_s.is_not(None)))

    def placed_jobs(self) -> list[JobRecord]:
        """Returns every job past the queue that the controller still has to do with, the oldest first.

        These are the ones that are not over, and those whose gang the engine still holds.
        """
        return self._oldest_first(placed())

    def unfinished(self) -> list[JobRecord]:
        """Returns every job that is not over, queued ones too, the oldest first."""
        return self._oldest_first(JOBS.c.state.in_(_UNFINISHED))

    def advance(
        self,
        uid: str,
        kind: JobEvent,
        *,
        detail: str,
        time_s: float | None = None,
        ended: AttemptRecord | None = None,
        bill: Bill | None = None,
        replicas: Sequence[ReplicaRecord] | None = None,
        **changes: Any,
    ) -> JobRecord:
        """Moves a job to its next state and records the event, with other changes of it, in one transaction.

        Args:
            uid: the job.
            kind: what happened.
            detail: the cause, in words.
            time_s: when it happened, seconds since 1970 UTC; now, if left out.
            ended: a start of its gang that is over with it.
            bill: what the job cost, where it is over with it.
            replicas: its replicas; as they were recorded, if left out.
            changes: other columns to set with it.

        Raises:
            WrongStateError: the event does not fit the job's state; nothing was changed.
        """
        if bill is not None:
            changes["bill"] = replace(bill, lines=())
        while True:
            with writing(self._engine, guard=self._guard) as connection:
                before = _state(connection, uid)
                state = next_state(before, event=kind)
                matched = connection.execute(
                    update(JOBS)
                    .where(JOBS.c.uid == uid, JOBS.c.state == before.value)
                    .values({**changes, "state": state.value})
                )
                if matched.rowcount == 1:
                    if ended is not None:
                        _add_attempt(connection, uid, ended)
                    if replicas is not None:
                        write_replicas(connection, uid, replicas)
                    self._record(connection, uid, kind, state, detail, time_s=self._clock(), happened_time_s=time_s)
                    return _job(connection, uid)
            # Somebody else changed the state between the two statements: look again whether the event still fits.

    def note(self, uid: str, *, kind: str, detail: str) -> None:
        """Records something that happened to a job and is no change of its state.

        Args:
            uid: the job.
            kind: what, in a word that is no `JobEvent`.
            detail: in words.
        """
        with self._engine.begin() as connection:
            self._record(connection, uid, kind, _state(connection, uid), detail, time_s=self._clock())

    def update(
        self,
        uid: str,
        *,
        notes: Sequence[Note] = (),
        ended: AttemptRecord | None = None,
        replicas: Sequence[ReplicaRecord] | None = None,
        **changes: Any,
    ) -> None:
        """Sets columns that are no change of state, and records what happened with it, in one transaction.

        Args:
            uid: the job.
            notes: what happened.
            ended: a start of its gang that is over with it.
            replicas: its replicas; as they were recorded, if left out.
            changes: columns to set.
        """
        with writing(self._engine, guard=self._guard) as connection:
            if changes:
                connection.execute(update(JOBS).where(JOBS.c.uid == uid).values(**changes))
            if ended is not None:
                _add_attempt(connection, uid, ended)
            if replicas is not None:
                write_replicas(connection, uid, replicas)
            if notes:
                state = _state(connection, uid)
                for note in notes:
                    self._record(connection, uid, note.kind, state, note.detail, time_s=note.time_s)

    def set_labels(self, uid: str, *, labels: Mapping[str, str], version: int | None) -> bool:
        """Sets a job's labels if its version is still the given one (any, if None); returns whether it was."""
        query = update(JOBS).where(JOBS.c.uid == uid)
        if version is not None:
            query = query.where(JOBS.c.version == version)
        with writing(self._engine, guard=self._guard) as connection:
            changed = connection.execute(query.values(labels=dict(labels), version=JOBS.c.version + 1))
            return changed.rowcount == 1

    def attempts(self, uid: str) -> list[AttemptRecord]:
        """Returns the starts of a job's gang that are over, the first one first."""
        query = select(JOB_ATTEMPTS).where(JOB_ATTEMPTS.c.job_uid == uid).order_by(JOB_ATTEMPTS.c.attempt)
        with reading(self._engine) as connection:
            return [attempt_record(row) for row in connection.execute(query).mappings()]

    def ran_between(self, *, project: str | None, since_s: float, until_s: float) -> list[JobRecord]:
        """Returns the jobs of a project, or of all, of which something ran between two times, the oldest first."""
        ended = or_(JOBS.c.end_time_s.is_(None), JOBS.c.end_time_s > since_s)
        return self._oldest_first(and_(_of(project), JOBS.c.start_time_s < until_s, ended))

    def named(self, uids: Collection[str]) -> list[JobRecord]:
        """Returns the jobs of some of the service's own identifiers, the oldest first."""
        return self._oldest_first(JOBS.c.uid.in_(uids)) if uids else []

    def attempts_of(self, *, project: str | None, since_s: float = 0.0) -> dict[str, list[AttemptRecord]]:
        """Returns the starts that are over, and were not at a time, of all jobs of a project, or of all, by job."""
        query = (
            select(JOB_ATTEMPTS)
            .join(JOBS, JOBS.c.uid == JOB_ATTEMPTS.c.job_uid)
            .where(_of(project), JOB_ATTEMPTS.c.end_time_s >= since_s)
            .order_by(JOB_ATTEMPTS.c.job_uid, JOB_ATTEMPTS.c.attempt)
        )
        found: dict[str, list[AttemptRecord]] = {}
        with reading(self._engine) as connection:
            for row in connection.execute(query).mappings():
                found.setdefault(row["job_uid"], []).append(attempt_record(row))
        return found

    def count_by_state(self) -> dict[tuple[str, JobState], int]:
        """Returns how many jobs there are by project and state."""
        query = select(JOBS.c.project, JOBS.c.state, func.count()).group_by(JOBS.c.project, JOBS.c.state)
        with reading(self._engine) as connection:
            return {(project, JobState(state)): number for project, state, number in connection.execute(query)}

    def last_event_time_s(self, uid: str, *, kind: JobEvent) -> float:
        """Returns when something last happened to a job, seconds since 1970 UTC; 0 if it never did."""
        query = select(func.max(JOB_EVENTS.c.time_s)).where(
            JOB_EVENTS.c.job_uid == uid, JOB_EVENTS.c.kind == kind.value
        )
        with reading(self._engine) as connection:
            return connection.execute(query).scalar() or 0.0

    def events(self, uid: str) -> list[RecordedEvent]:
        """Returns a job's events, the oldest first."""
        query = select(JOB_EVENTS).where(JOB_EVENTS.c.job_uid == uid).order_by(JOB_EVENTS.c.seq)
        found: list[RecordedEvent] = []
        with reading(self._engine) as connection:
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

    def _oldest_first(self, condition: ColumnElement[bool]) -> list[JobRecord]:
        with reading(self._engine) as connection:
            return read_jobs(connection, condition)

    @staticmethod
    def _record(
        connection: Connection,
        uid: str,
        kind: str,
        state: JobState,
        detail: str,
        *,
        time_s: float,
        happened_time_s: float | None = None,
    ) -> None:
        values = {"kind": str(kind), "state": state.value, "detail": detail}
        connection.execute(
            insert(JOB_EVENTS).values(job_uid=uid, time_s=time_s, happened_time_s=happened_time_s, **values)
        )


def _add_attempt(connection: Connection, uid: str, ended: AttemptRecord) -> None:
    columns = {name: getattr(ended, name) for name in _ATTEMPT}
    connection.execute(insert(JOB_ATTEMPTS).values(job_uid=uid, **columns, machines=list(ended.machines)))


def _within(bounds: JobBounds) -> Iterator[ColumnElement[bool]]:
    if bounds.job_id is not None:
        yield JOBS.c.job_id == bounds.job_id
    if len(bounds.states) < len(JobState):
        yield JOBS.c.state.in_(sorted(bounds.states))
    for key, value in bounds.labels.items():
        yield JOBS.c.labels[key].as_string() == value
    if bounds.since_s is not None:
        yield JOBS.c.create_time_s >= bounds.since_s
    if bounds.until_s is not None:
        yield JOBS.c.create_time_s <= bounds.until_s
    for name, column in _DOCUMENTS.items():
        document = cast(column, _TEXT)
        for text in sorted(bounds.texts.get(name, ())):
            yield or_(document.icontains(text, autoescape=True), document.contains(_ESCAPE, autoescape=True))


def placed() -> ColumnElement[bool]:
    """Holds for the jobs that `JobStore.placed_jobs` returns."""
    held = and_(JOBS.c.gang_released.is_(False), JOBS.c.state != _QUEUED)
    return or_(JOBS.c.state.in_(_PLACED), held)


def _of(project: str | None) -> ColumnElement[bool]:
    return true() if project is None else JOBS.c.project == project


def attempt_record(row: RowMapping) -> AttemptRecord:
    """Returns a start of a gang from its row."""
    return AttemptRecord(**{name: row[name] for name in _ATTEMPT}, machines=tuple(row["machines"]))


def _state(connection: Connection, uid: str) -> JobState:
    return JobState(connection.execute(select(JOBS.c.state).where(JOBS.c.uid == uid)).scalar_one())


def _job(connection: Connection, uid: str) -> JobRecord:
    [job] = read_jobs(connection, JOBS.c.uid == uid)
    return job


def read_jobs(connection: Connection, condition: ColumnElement[bool]) -> list[JobRecord]:
    """Returns the jobs for which a condition holds, the oldest first."""
    query = select(JOBS).where(condition).order_by(JOBS.c.create_time_s, JOBS.c.uid)
    rows = connection.execute(query).mappings().all()
    replicas = read_replicas(connection, condition) if rows else {}
    return [_record(row, replicas=replicas.get(row["uid"], ())) for row in rows]


def _record(row: RowMapping, *, replicas: tuple[ReplicaRecord, ...]) -> JobRecord:
    return JobRecord(**{**row, "state": JobState(row["state"])}, replicas=replicas)
