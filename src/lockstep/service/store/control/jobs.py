"""Jobs in the database. Every change of state is one transaction, and is recorded with its time and cause."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, final

from sqlalchemy import (
    Engine,
    Row,
    and_,
    func,
    insert,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.exc import IntegrityError

from lockstep.errors import ConflictError, NotFoundError
from lockstep.jobs.billing.bills import Bill
from lockstep.jobs.lists.filters import JobBounds
from lockstep.jobs.running.order_parts import FileOrder
from lockstep.jobs.running.states import JobEvent, JobState, next_state
from lockstep.jobs.security.access import HOME_LABEL
from lockstep.service.store.control.changes import REVISED, count_change, read_changes
from lockstep.service.store.control.job_reader import HAS_GANG, SUBMITTED, JobReader
from lockstep.service.store.control.job_rows import (
    GangPart,
    Made,
    RanJob,
    add_attempt,
    attempt_record,
    read_events,
    read_jobs,
    read_ran,
    read_shown_jobs,
    read_state,
    record_event,
)
from lockstep.service.store.control.listing import NEWEST_FIRST, JobOrder, conditions_of, select_jobs
from lockstep.service.store.control.records import (
    AttemptRecord,
    EventNote,
    JobKind,
    JobRecord,
    RecordedEvent,
)
from lockstep.service.store.control.replicas import (
    ReplicaChange,
    ReplicaRecord,
    change_replicas,
    read_replicas,
    split_uids,
    write_replicas,
)
from lockstep.service.store.database import Guard, reading, unguarded, writing
from lockstep.service.store.notifications.webhooks import NewWebhook, add_job_webhooks
from lockstep.service.store.tables import JOB_ATTEMPTS, JOB_EVENTS, JOB_REPLICAS, JOBS

_READ_AS_JOB: Final = or_(SUBMITTED, JOBS.c.kind == JobKind.TRIAL.value)


def _nothing_known(_uid: str, _version: int) -> None:
    return None


@final
class JobStore(JobReader):
    """The store of jobs and their events. Thread-safe. Each method is one transaction.

    Args:
        engine: the opened database.
        clock: the clock, in seconds since 1970 UTC.
        guard: called in each transaction before it writes, except in `record_event`; it may raise an exception to
            forbid the transaction.
    """

    def __init__(self, engine: Engine, *, clock: Callable[[], float] = time.time, guard: Guard = unguarded) -> None:
        super().__init__(engine, clock=clock)
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
        prediction_input: Mapping[str, Any] | None = None,
        files: Sequence[FileOrder] = (),
        kind: JobKind = JobKind.TRAINING,
        version_uid: str | None = None,
        priority: int = 0,
        max_wait_time_s: float | None = None,
        submitted_by: str = HOME_LABEL,
        webhooks: Sequence[NewWebhook] = (),
    ) -> JobRecord:
        """Records a new job as QUEUED.

        Args:
            project: the project that owns the job.
            job_id: the name of the job within the project.
            training_input: the training input, in the contract's JSON.
            labels: the labels of the job.
            simulated: whether anything of the job is simulated.
            outputs: the bucket URLs of its outputs, by kind.
            prediction_input: the prediction input of a batch prediction, in the contract's JSON.
            files: the files that its programs need in their working folders.
            kind: the kind of the job.
            version_uid: the uid of the version that a prediction server serves.
            priority: the priority in the queue; jobs with a higher number start earlier.
            max_wait_time_s: the maximum time in the queue, in seconds; None for no limit.
            submitted_by: the label of the submitter.
            webhooks: the webhooks to notify of the job's changes of state.

        Raises:
            ConflictError: If the project has a job of this name.
        """
        uid = uuid.uuid4().hex
        now_s = self._clock()
        values = {
            "uid": uid,
            "project": project,
            "job_id": job_id,
            "kind": kind.value,
            "is_submitted": kind in (JobKind.TRAINING, JobKind.SEARCH),
            "version_uid": version_uid,
            "training_input": dict(training_input),
            "prediction_input": None if prediction_input is None else dict(prediction_input),
            "files": tuple(files),
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
                record_event(connection, uid, JobEvent.ENQUEUED, detail=f"submitted by {submitted_by}", time_s=now_s)
                count_change(connection, uid)
        except IntegrityError:
            raise ConflictError(
                f"project {project} has a job {job_id!r} already", action="choose another name"
            ) from None
        return self.get_by_uid(uid)

    def get(self, *, project: str, job_id: str, gang: GangPart = GangPart.WHOLE) -> JobRecord:
        """Returns a job that somebody submitted, or a trial of one.

        Args:
            project: the project.
            job_id: the name of the job.
            gang: what of its gang is read. The record is empty where something is not.

        Raises:
            NotFoundError: If the project has no job of this name.
        """
        named = and_(JOBS.c.project == project, JOBS.c.job_id == job_id, _READ_AS_JOB)
        with reading(self._engine) as connection:
            found = read_jobs(connection, named, gang=gang)
        if not found:
            raise NotFoundError(f"project {project} has no job {job_id!r}", action="see `lockstep jobs`")
        return found[0]

    def with_replicas(self, job: JobRecord, names: Collection[str] | None) -> JobRecord:
        """Returns a job with the replicas of these names, or with all if None, as they are now."""
        some = and_(JOBS.c.uid == job.uid, true() if names is None else JOB_REPLICAS.c.name.in_(names))
        with reading(self._engine) as connection:
            return replace(job, replicas=read_replicas(connection, some).get(job.uid, ()))

    def scan(
        self,
        *,
        project: str,
        bounds: JobBounds,
        columns: Collection[str],
        size: int,
        before: tuple[float | str, str] | None = None,
        order: JobOrder = NEWEST_FIRST,
    ) -> Sequence[Row[Any]]:
        """Returns some columns of up to `size` submitted jobs of a project, in an order.

        Args:
            project: the project.
            bounds: conditions that the jobs must meet.
            columns: the columns, in addition to those that `select_jobs` needs for the order.
            size: the maximum number of jobs.
            before: the place of the last job of the previous page; None for the first page.
            order: the order; by default, the newest first.
        """
        conditions = (JOBS.c.project == project, SUBMITTED, *conditions_of(bounds))
        query = select_jobs(*conditions, columns=columns, order=order, size=size, after=before)
        with reading(self._engine) as connection:
            return connection.execute(query).all()

    def get_by_uid(self, uid: str) -> JobRecord:
        """Returns a job by its uid. The job must exist."""
        with reading(self._engine) as connection:
            [job] = read_jobs(connection, JOBS.c.uid == uid)
        return job

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
        """Moves a job to its next state and records the event, with other changes of the job, in one transaction.

        Args:
            uid: the uid of the job.
            kind: the event.
            detail: a description of the cause.
            time_s: the time of the event, in seconds since 1970 UTC; now if omitted.
            ended: an attempt that the event ends.
            bill: the bill of the job, if the event ends it.
            replicas: the replicas of the job; unchanged if omitted.
            **changes: other columns to set.

        Raises:
            WrongStateError: If the event is not possible in the job's state. Nothing was changed.
        """
        if bill is not None:
            changes["bill"] = replace(bill, lines=())
        while True:
            with writing(self._engine, guard=self._guard) as connection:
                before = read_state(connection, uid)
                state = next_state(before, event=kind)
                matched = connection.execute(
                    update(JOBS)
                    .where(JOBS.c.uid == uid, JOBS.c.state == before.value)
                    .values({**changes, **REVISED, "state": state.value})
                )
                if matched.rowcount == 1:
                    if ended is not None:
                        add_attempt(connection, uid, ended)
                    if replicas is not None:
                        write_replicas(connection, uid, replicas)
                    record_event(
                        connection, uid, kind, state=state, detail=detail, time_s=self._clock(), happened_time_s=time_s
                    )
                    count_change(connection, uid)
            if matched.rowcount == 1:
                return self.get_by_uid(uid)
            # The state was changed between the two statements: check again whether the event is still possible.

    def update_replicas(self, changed: Sequence[ReplicaChange]) -> None:
        """Records what running replicas of some jobs have reported, in one transaction. The jobs' revisions stay."""
        with writing(self._engine, guard=self._guard) as connection:
            change_replicas(connection, changed)

    def record_event(self, uid: str, *, kind: str, detail: str) -> None:
        """Records an event of a job that does not change its state.

        Args:
            uid: the uid of the job.
            kind: the kind of the event, a word that is not a `JobEvent`.
            detail: a description.
        """
        with self._engine.begin() as connection:
            record_event(connection, uid, kind, state=read_state(connection, uid), detail=detail, time_s=self._clock())

    def update(
        self,
        uid: str,
        *,
        notes: Sequence[EventNote] = (),
        ended: AttemptRecord | None = None,
        replicas: Sequence[ReplicaRecord] | None = None,
        **changes: Any,
    ) -> None:
        """Sets columns of a job other than its state, and records events, in one transaction.

        Args:
            uid: the uid of the job.
            notes: the events to record.
            ended: an attempt that ends with this change.
            replicas: the replicas of the job; unchanged if omitted.
            **changes: the columns to set.
        """
        with writing(self._engine, guard=self._guard) as connection:
            if changes or replicas is not None:
                connection.execute(update(JOBS).where(JOBS.c.uid == uid).values({**changes, **REVISED}))
            if ended is not None:
                add_attempt(connection, uid, ended)
            if replicas is not None:
                write_replicas(connection, uid, replicas)
            if notes:
                state = read_state(connection, uid)
                for note in notes:
                    record_event(connection, uid, note.kind, state=state, detail=note.detail, time_s=note.time_s)
            if changes:
                count_change(connection, uid)

    def set_labels(self, uid: str, *, labels: Mapping[str, str], version: int | None) -> bool:
        """Sets a job's labels if its version is still `version` (None for any); returns whether they were set."""
        query = update(JOBS).where(JOBS.c.uid == uid)
        if version is not None:
            query = query.where(JOBS.c.version == version)
        with writing(self._engine, guard=self._guard) as connection:
            changed = connection.execute(
                query.values({**REVISED, "labels": dict(labels), "version": JOBS.c.version + 1})
            )
            if changed.rowcount == 1:
                count_change(connection, uid)
            return changed.rowcount == 1

    def num_changes(self, project: str) -> int:
        """Returns how many changes of a project's jobs were committed: of their columns, not of their replicas.

        If it is the same before and after, then a list of the project's jobs is the same, as far as they are over.
        """
        with reading(self._engine) as connection:
            return read_changes(connection, project)

    def attempts(self, uid: str) -> list[AttemptRecord]:
        """Returns the attempts of a job that are over, in order."""
        query = select(JOB_ATTEMPTS).where(JOB_ATTEMPTS.c.job_uid == uid).order_by(JOB_ATTEMPTS.c.attempt)
        with reading(self._engine) as connection:
            return [attempt_record(row) for row in connection.execute(query).mappings()]

    def ran_between(
        self,
        *,
        project: str | None,
        since_s: float,
        until_s: float,
        make: Callable[[RanJob], Made],
        known: Callable[[str, int], Made | None] = _nothing_known,
    ) -> list[Made]:
        """Returns what is made of the jobs that ran at some time in an interval, the oldest first.

        Args:
            project: the project of the jobs; None for all.
            since_s: the start of the interval, in seconds since 1970 UTC.
            until_s: its end.
            make: makes it.
            known: is given the uid and the version of a job, and returns what was made of it before; None to read it.
        """
        ended = or_(JOBS.c.end_time_s.is_(None), JOBS.c.end_time_s > since_s)
        own = true() if project is None else JOBS.c.project == project
        ran = and_(own, JOBS.c.start_time_s < until_s, ended, HAS_GANG)
        with reading(self._engine) as connection:
            return read_ran(connection, ran, make=make, known=known)

    def get_by_uids(self, uids: Collection[str], *, gang: GangPart = GangPart.WHOLE) -> list[JobRecord]:
        """Returns the jobs with some uids, the oldest first. `gang` says what of their gangs is read."""
        with reading(self._engine) as connection:
            found = [job for some in split_uids(list(uids)) for job in read_jobs(connection, some, gang=gang)]
        return sorted(found, key=lambda job: (job.create_time_s, job.uid))

    def get_shown(self, uids: Collection[str]) -> list[JobRecord]:
        """Returns the jobs with some uids, the oldest first, as a list shows them: see `read_shown_jobs`."""
        with reading(self._engine) as connection:
            return read_shown_jobs(connection, uids)

    def count_by_state(self) -> dict[tuple[str, JobState], int]:
        """Returns the number of submitted jobs by project and state."""
        grouped = (JOBS.c.project, JOBS.c.state)
        query = select(*grouped, func.count()).where(SUBMITTED).group_by(*grouped)
        with reading(self._engine) as connection:
            return {(project, JobState(state)): number for project, state, number in connection.execute(query)}

    def last_event_time_s(self, uid: str, *, kind: JobEvent) -> float:
        """Returns when a job's last event of a kind was recorded, in seconds since 1970 UTC; 0 if there is none."""
        of = (JOB_EVENTS.c.job_uid == uid, JOB_EVENTS.c.kind == kind.value)
        query = select(func.max(JOB_EVENTS.c.time_s)).where(*of)
        with reading(self._engine) as connection:
            return connection.execute(query).scalar() or 0.0

    def events(self, uid: str) -> list[RecordedEvent]:
        """Returns a job's events, the oldest first."""
        with reading(self._engine) as connection:
            return read_events(connection, uid)
