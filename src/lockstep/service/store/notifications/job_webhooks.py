"""Jobs' own webhooks: where they lead, how far each was told, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from sqlalchemy import Connection, Engine, RowMapping, exists, insert, select, update

from lockstep.jobs.notifications.webhooks import HookEvent
from lockstep.jobs.running.states import JobEvent, JobState
from lockstep.service.store.database import Guard, reading, unguarded, writing
from lockstep.service.store.notifications.webhooks import select_job_events
from lockstep.service.store.tables import JOB_EVENTS, JOB_WEBHOOKS, JOBS

# Changes of state alone: they come one after the other, each with the job's row locked. A note may become visible
# before a change that has a lower number; a cursor that had moved on to the note would never see the change.
_CHANGES: Final = JOB_EVENTS.c.kind.in_([kind.value for kind in JobEvent])


@final
@dataclass(frozen=True, kw_only=True)
class NewJobHook:
    """A webhook of a job that is to be recorded.

    Attributes:
        sealed: its URL, encrypted.
        place: the part of the URL that may be shown.
        secret: name of the project's secret that messages are signed with.
        states: of which states it is told; of all, where it is empty.
    """

    sealed: bytes
    place: str
    secret: str | None
    states: tuple[JobState, ...]


@final
@dataclass(frozen=True, kw_only=True)
class JobHookRecord:
    """A webhook of a job.

    Attributes:
        job_uid: the job.
        number: which of the job's webhooks, from 0.
        project: the job's project.
        sealed: its URL, encrypted.
        place: the part of the URL that may be shown.
        secret: name of the project's secret that messages are signed with.
        states: of which states it is told; of all, where it is empty.
        seq: number of the last event that was dealt with.
        num_failures: how often in a row it was not told.
        num_dropped: of how many events it was never told, because they were too old at last.
        next_time_s: when it is to be told next, seconds since 1970 UTC; None once the job's end was dealt with.
        problem: why it was not told last, None where it was.
        since_s: since when it is not told.
    """

    job_uid: str
    number: int
    project: str
    sealed: bytes
    place: str
    secret: str | None
    states: tuple[JobState, ...]
    seq: int
    num_failures: int
    num_dropped: int
    next_time_s: float | None
    problem: str | None
    since_s: float | None

    @property
    def key(self) -> tuple[str, int]:
        """What tells it from all others."""
        return self.job_uid, self.number


def add_job_hooks(connection: Connection, uid: str, *, hooks: Sequence[NewJobHook], now_s: float) -> None:
    """Records a job's webhooks, in the transaction that records the job: neither is there without the other."""
    for number, hook in enumerate(hooks):
        connection.execute(
            insert(JOB_WEBHOOKS).values(
                job_uid=uid,
                number=number,
                sealed=hook.sealed,
                place=hook.place,
                secret=hook.secret,
                states=[state.value for state in hook.states],
                seq=0,
                num_failures=0,
                num_dropped=0,
                next_time_s=now_s,
            )
        )


@final
class JobHookStore:
    """The webhooks of jobs. Thread-safe; each method is one transaction.

    Args:
        engine: the opened database.
        guard: called first where a hook was told: who tells it is one of several services.
    """

    def __init__(self, engine: Engine, *, guard: Guard = unguarded) -> None:
        self._engine = engine
        self._guard = guard

    def due(self, now_s: float, *, without: Collection[str], limit: int) -> list[JobHookRecord]:
        """Returns webhooks that have something to be told now, those that wait for longest first.

        Args:
            now_s: seconds since 1970 UTC.
            without: projects whose webhooks are left out.
            limit: how many at the most.
        """
        ahead = exists().where(JOB_EVENTS.c.job_uid == JOB_WEBHOOKS.c.job_uid, JOB_EVENTS.c.seq > JOB_WEBHOOKS.c.seq)
        query = (
            select(JOB_WEBHOOKS, JOBS.c.project)
            .join(JOBS, JOBS.c.uid == JOB_WEBHOOKS.c.job_uid)
            .where(JOB_WEBHOOKS.c.next_time_s <= now_s, ahead.where(_CHANGES), JOBS.c.project.not_in(without))
            .order_by(JOB_WEBHOOKS.c.next_time_s, JOB_WEBHOOKS.c.job_uid, JOB_WEBHOOKS.c.number)
            .limit(limit)
        )
        with reading(self._engine) as connection:
            return [_hook(row) for row in connection.execute(query).mappings()]

    def of_job(self, uid: str) -> list[JobHookRecord]:
        """Returns the webhooks of a job, in the order in which it names them."""
        query = (
            select(JOB_WEBHOOKS, JOBS.c.project)
            .join(JOBS, JOBS.c.uid == JOB_WEBHOOKS.c.job_uid)
            .where(JOB_WEBHOOKS.c.job_uid == uid)
            .order_by(JOB_WEBHOOKS.c.number)
        )
        with reading(self._engine) as connection:
            return [_hook(row) for row in connection.execute(query).mappings()]

    def events_for(self, hook: JobHookRecord, *, limit: int) -> list[HookEvent]:
        """Returns the changes of its job's state that a webhook has not been told of, the oldest first."""
        conditions = (JOB_EVENTS.c.job_uid == hook.job_uid, JOB_EVENTS.c.seq > hook.seq, _CHANGES)
        return select_job_events(self._engine, *conditions, limit=limit)

    def note_told(self, hook: JobHookRecord, *, seq: int, next_time_s: float | None) -> None:
        """Notes that a webhook was told of an event.

        Args:
            hook: the webhook.
            seq: the event's number.
            next_time_s: when it may be told of the next one; None where there will be none.
        """
        self._set(hook, seq=seq, next_time_s=next_time_s, num_failures=0, problem=None, since_s=None)

    def note_passed(self, hook: JobHookRecord, *, seq: int, next_time_s: float | None) -> None:
        """Notes that an event is no concern of a webhook, or none any more.

        Args:
            hook: the webhook; of how many events it was never told is noted with it.
            seq: the event's number.
            next_time_s: when it may be told of the next one; None where there will be none.
        """
        self._set(hook, seq=seq, next_time_s=next_time_s, num_dropped=hook.num_dropped)

    def note_failure(
        self, hook: JobHookRecord, *, problem: str, num_failures: int, since_s: float, next_time_s: float
    ) -> None:
        """Notes that a webhook was not told.

        Args:
            hook: the webhook.
            problem: why not.
            num_failures: how often in a row.
            since_s: since when.
            next_time_s: when it is tried again.
        """
        self._set(hook, problem=problem, num_failures=num_failures, since_s=since_s, next_time_s=next_time_s)

    def _set(self, hook: JobHookRecord, **changes: Any) -> None:
        key = (JOB_WEBHOOKS.c.job_uid == hook.job_uid, JOB_WEBHOOKS.c.number == hook.number)
        with writing(self._engine, guard=self._guard) as connection:
            connection.execute(update(JOB_WEBHOOKS).where(*key).values(**changes))


def _hook(row: RowMapping) -> JobHookRecord:
    return JobHookRecord(**{**row, "states": tuple(JobState(state) for state in row["states"])})
