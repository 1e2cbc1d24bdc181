"""The queues of webhooks in the database. A row says how far a webhook was notified; the events are in other tables."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    RowMapping,
    and_,
    exists,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from lockstep.errors import UnavailableError
from lockstep.jobs.billing.budgets import Alert
from lockstep.jobs.notifications.webhooks import ALERT, HookEvent
from lockstep.jobs.running.states import JobEvent, JobState
from lockstep.service.store.database import POSTGRESQL, Guard, reading, unguarded, writing
from lockstep.service.store.faults import DATABASE_FAULTS
from lockstep.service.store.notifications.deliveries import Delivery, add_deliveries, read_deliveries
from lockstep.service.store.tables import BUDGET_ALERTS, JOB_EVENTS, JOBS, WEBHOOKS


@final
class Feed(StrEnum):
    """The source of a queue's events."""

    JOB = "job"
    """The changes of state of one job, which names the webhook."""
    JOBS = "jobs"
    """All events of all jobs, for a webhook of the operator."""
    ALERTS = "alerts"
    """All alerts of budgets, for a webhook of the operator."""


# Changes of state of one job are committed in the order of their numbers, since each locks the job's row. Notes are
# not, so a queue that has advanced to a note could miss a change with a lower number.
_IS_CHANGE: Final = JOB_EVENTS.c.kind.in_([kind.value for kind in JobEvent])
_PROGRESS: Final = ("seq", "num_failures", "num_dropped", "next_time_s", "problem", "since_s")
_IS_OPERATORS: Final = WEBHOOKS.c.job_uid.is_(None)
_IS_BEHIND: Final = WEBHOOKS.c.event_seq > WEBHOOKS.c.seq
_SUBMITTED: Final = JOBS.alias()  # the queries that ask for events join the webhook's own job as well
_IS_SUBMITTED: Final = and_(
    _SUBMITTED.c.uid == JOB_EVENTS.c.job_uid,
    _SUBMITTED.c.is_submitted.is_(True),
)
_HAS_EVENTS: Final = or_(
    and_(WEBHOOKS.c.feed == Feed.JOBS, exists().where(JOB_EVENTS.c.seq > WEBHOOKS.c.seq, _IS_SUBMITTED)),
    and_(WEBHOOKS.c.feed == Feed.ALERTS, exists().where(BUDGET_ALERTS.c.seq > WEBHOOKS.c.seq)),
)


@final
@dataclass(frozen=True, kw_only=True)
class NewWebhook:
    """A webhook of a new job, to be recorded.

    Attributes:
        sealed: the encrypted URL.
        display_url: the part of the URL that may be shown.
        secret: the name of the project's secret that signs messages; None if they are not signed.
        states: the states that the webhook is notified of; all if empty.
    """

    sealed: bytes
    display_url: str
    secret: str | None
    states: tuple[JobState, ...]


@final
@dataclass(frozen=True, kw_only=True)
class WebhookRecord:
    """A queue: a webhook, and how far it was notified of one feed.

    Attributes:
        name: the name of the webhook; for a job's webhook, the job's uid and a number.
        feed: the source of the queue's events.
        job_uid: the uid of the job that specifies the webhook; None for a webhook of the operator, as are the next
            four.
        project: the project of the job.
        sealed: the encrypted URL.
        display_url: the part of the URL that may be shown.
        secret: the name of the project's secret that signs messages; also None if they are not signed.
        states: the states that the webhook is notified of; all if empty.
        seq: the number of the last event that was delivered, skipped or dropped.
        num_failures: the number of consecutive failed deliveries.
        num_dropped: the number of events that were dropped because they were too old.
        next_time_s: the time from which on the next event may be delivered, in seconds since 1970 UTC; None if no
            event will follow.
        problem: the reason why the last delivery failed; None if it did not fail.
        since_s: the time since when deliveries fail, in seconds since 1970 UTC; None if they do not fail.
    """

    name: str
    feed: Feed
    job_uid: str | None
    project: str | None
    sealed: bytes | None
    display_url: str | None
    secret: str | None
    states: tuple[JobState, ...]
    seq: int
    num_failures: int
    num_dropped: int
    next_time_s: float | None
    problem: str | None
    since_s: float | None

    @property
    def key(self) -> tuple[str, str]:
        """The identity of the queue: name and feed."""
        return self.name, self.feed


@final
@dataclass(kw_only=True)
class _Saving:
    """A queue's progress that is to be recorded, and whether that was tried."""

    webhook: WebhookRecord
    deliveries: Sequence[Delivery]
    is_over: bool = False
    error: BaseException | None = None


def add_job_webhooks(connection: Connection, uid: str, *, webhooks: Sequence[NewWebhook], now_s: float) -> None:
    """Records a job's webhooks, in the transaction that records the job."""
    for number, webhook in enumerate(webhooks):
        values = {
            "job_uid": uid,
            "sealed": webhook.sealed,
            "display_url": webhook.display_url,
            "secret": webhook.secret,
        }
        states = [state.value for state in webhook.states]
        connection.execute(_insert(f"{uid}-{number}", Feed.JOB, now_s).values(**values, seq=0, states=states))


def note_change(connection: Connection, uid: str, *, seq: int) -> None:
    """Records that a job's webhooks have an event to deliver, in the transaction that records the event."""
    connection.execute(update(WEBHOOKS).where(WEBHOOKS.c.job_uid == uid).values(event_seq=seq))


@final
class WebhookStore:
    """The store of webhooks' queues. Thread-safe. Each method is one transaction.

    Args:
        engine: the opened database.
        guard: called in each transaction that records progress; it may raise an exception to forbid the transaction,
            since only one of several services delivers.
    """

    def __init__(self, engine: Engine, *, guard: Guard = unguarded) -> None:
        self._engine = engine
        self._guard = guard
        self._unsaved: deque[_Saving] = deque()
        self._saves = threading.Lock()

    def register(self, name: str, *, now_s: float) -> None:
        """Creates or resumes the queues of a webhook of the operator. New queues begin with the next event.

        Args:
            name: the name of the webhook.
            now_s: the current time, in seconds since 1970 UTC. Queues that wait after failures continue now.
        """
        for feed, table in ((Feed.JOBS, JOB_EVENTS), (Feed.ALERTS, BUDGET_ALERTS)):
            key = (WEBHOOKS.c.name == name, WEBHOOKS.c.feed == feed)
            # Another service may register the webhook at the same time.
            with contextlib.suppress(IntegrityError), self._engine.begin() as connection:
                if not connection.execute(update(WEBHOOKS).where(*key).values(next_time_s=now_s)).rowcount:
                    seq = connection.execute(select(func.coalesce(func.max(table.c.seq), 0))).scalar_one()
                    connection.execute(_insert(name, feed, now_s).values(seq=seq, states=[]))

    def due(self, now_s: float, *, names: Collection[str]) -> list[WebhookRecord]:
        """Returns the queues of the operator's webhooks that have an event to deliver now.

        Args:
            now_s: the current time, in seconds since 1970 UTC.
            names: the names of the operator's current webhooks.
        """
        return self._select(WEBHOOKS.c.next_time_s <= now_s, _HAS_EVENTS, WEBHOOKS.c.name.in_(names), _IS_OPERATORS)

    def due_of_jobs(self, now_s: float, *, without: Collection[str], limit: int) -> list[WebhookRecord]:
        """Returns the queues of jobs' webhooks that have an event to deliver now, those that wait longest first.

        Args:
            now_s: the current time, in seconds since 1970 UTC.
            without: the projects to exclude.
            limit: the maximum number of queues.
        """
        conditions = (WEBHOOKS.c.next_time_s <= now_s, _IS_BEHIND, JOBS.c.project.not_in(without))
        return self._select(*conditions, limit=limit)

    def of_job(self, uid: str) -> list[WebhookRecord]:
        """Returns the webhooks of a job, in the order of its training input."""
        return sorted(self._select(WEBHOOKS.c.job_uid == uid), key=lambda webhook: webhook.name)

    def of_operator(self) -> list[WebhookRecord]:
        """Returns all queues of the operator's webhooks."""
        return self._select(_IS_OPERATORS)

    def _select(self, *conditions: ColumnElement[bool], limit: int | None = None) -> list[WebhookRecord]:
        query = (
            select(WEBHOOKS, JOBS.c.project)
            .outerjoin(JOBS, JOBS.c.uid == WEBHOOKS.c.job_uid)
            .where(*conditions)
            .order_by(WEBHOOKS.c.next_time_s, WEBHOOKS.c.name, WEBHOOKS.c.feed)
            .limit(limit)
        )
        with reading(self._engine) as connection:
            return [_webhook(row) for row in connection.execute(query).mappings()]

    def events_for(self, webhook: WebhookRecord, *, limit: int) -> list[HookEvent]:
        """Returns the next events of a queue, the oldest first, at most `limit`."""
        return self.events_after(webhook.feed, webhook.seq, job_uid=webhook.job_uid, limit=limit)

    def events_after(self, feed: Feed, seq: int, *, job_uid: str | None = None, limit: int) -> list[HookEvent]:
        """Returns the events of a feed after a number, the oldest first.

        Args:
            feed: the feed.
            seq: the number.
            job_uid: the uid of the job whose feed it is; None for a feed of all jobs.
            limit: the maximum number of events.
        """
        if feed is Feed.ALERTS:
            query = select(BUDGET_ALERTS).where(BUDGET_ALERTS.c.seq > seq).order_by(BUDGET_ALERTS.c.seq)
            read = _alert
        else:
            query = (
                select(JOB_EVENTS, _SUBMITTED.c.project, _SUBMITTED.c.job_id)
                .join(_SUBMITTED, _IS_SUBMITTED)
                .where(JOB_EVENTS.c.seq > seq)
                .order_by(JOB_EVENTS.c.seq)
            )
            if feed is Feed.JOB:
                query = query.where(JOB_EVENTS.c.job_uid == job_uid, _IS_CHANGE)
            read = _change
        with reading(self._engine) as connection:
            return [read(row) for row in connection.execute(query.limit(limit)).mappings()]

    def deliveries(self, name: str) -> list[Delivery]:
        """Returns the kept deliveries of a webhook, of all its feeds, the latest first."""
        with reading(self._engine) as connection:
            return read_deliveries(connection, name)

    def save(self, webhook: WebhookRecord, *, deliveries: Sequence[Delivery] = ()) -> None:
        """Records the progress of a queue: `seq` and all attributes after it.

        On SQLite, what other threads save meanwhile is recorded in one transaction, after this one. With a transaction
        for each, they would keep others from writing. On PostgreSQL, writers do not wait for each other, and a
        transaction that changes several queues could be in a deadlock with another one.

        Args:
            webhook: the queue.
            deliveries: the deliveries that made the progress, or failed, in order; none if nothing was sent.
        """
        saving = _Saving(webhook=webhook, deliveries=deliveries)
        if self._engine.dialect.name == POSTGRESQL:
            self._save_all([saving])
        else:
            self._unsaved.append(saving)
            with self._saves:
                if not saving.is_over:
                    self._save_all([self._unsaved.popleft() for _ in range(len(self._unsaved))])
        if saving.error is not None:
            raise saving.error

    def skip(self, feed: Feed, names: Collection[str], *, seq: int) -> None:
        """Records that some of the operator's webhooks want no event of a feed up to the number `seq`."""
        own = (_IS_OPERATORS, WEBHOOKS.c.feed == feed, WEBHOOKS.c.name.in_(names), WEBHOOKS.c.seq < seq)
        with writing(self._engine, guard=self._guard) as connection:
            connection.execute(update(WEBHOOKS).where(*own).values(seq=seq))

    def _save_all(self, savings: Sequence[_Saving]) -> None:
        try:
            with writing(self._engine, guard=self._guard) as connection:
                for saving in savings:
                    webhook = saving.webhook
                    changes = {name: getattr(webhook, name) for name in _PROGRESS}
                    key = (WEBHOOKS.c.name == webhook.name, WEBHOOKS.c.feed == webhook.feed)
                    connection.execute(update(WEBHOOKS).where(*key).values(changes))
                    if saving.deliveries:
                        add_deliveries(connection, saving.deliveries)
        except BaseException as error:
            is_of_all = len(savings) == 1 or isinstance(error, (*DATABASE_FAULTS, UnavailableError))
            for saving in savings:
                if is_of_all:
                    saving.error = error
                else:  # one of them cannot be recorded, and the others are not affected
                    self._save_all([saving])
        finally:
            for saving in savings:
                saving.is_over = True


def _insert(name: str, feed: Feed, now_s: float) -> Any:
    return insert(WEBHOOKS).values(name=name, feed=feed.value, num_failures=0, num_dropped=0, next_time_s=now_s)


def _webhook(row: RowMapping) -> WebhookRecord:
    columns = {name: value for name, value in row.items() if name != "event_seq"}
    states = tuple(JobState(state) for state in row["states"])
    return WebhookRecord(**{**columns, "feed": Feed(row["feed"]), "states": states})


def _alert(row: RowMapping) -> HookEvent:
    return HookEvent(
        seq=row["seq"],
        time_s=row["time_s"],
        time=_timestamp(row["time_s"]),
        project=row["project"],
        kind=ALERT,
        detail=row["text"],
        alert=Alert(**{name: row[name] for name in ("project", "period", "share", "limit_usd")}),
    )


def _change(row: RowMapping) -> HookEvent:
    return HookEvent(
        seq=row["seq"],
        time_s=row["time_s"],
        time=_timestamp(row["time_s"] if row["happened_time_s"] is None else row["happened_time_s"]),
        project=row["project"],
        job=row["job_id"],
        uid=row["job_uid"],
        kind=row["kind"],
        state=row["state"],
        detail=row["detail"],
    )


def _timestamp(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, tz=UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
