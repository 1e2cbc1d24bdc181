"""How far each webhook has been told, and what there is to tell."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, final

from sqlalchemy import Column, ColumnElement, Engine, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from lockstep.jobs.billing.budgets import Alert
from lockstep.jobs.notifications.webhooks import ALERT, HookEvent
from lockstep.service.store.database import Guard, reading, unguarded, writing
from lockstep.service.store.tables import BUDGET_ALERTS, JOB_EVENTS, JOBS, WEBHOOK_CURSORS


@final
class Feed(StrEnum):
    """What there is to tell, each with numbers of its own."""

    JOBS = "jobs"
    """What happens to jobs."""
    ALERTS = "alerts"
    """Alerts of budgets."""


_CURSORS: Final[dict[Feed, Column[int]]] = {
    Feed.JOBS: WEBHOOK_CURSORS.c.seq,
    Feed.ALERTS: WEBHOOK_CURSORS.c.alert_seq,
}


@final
class WebhookStore:
    """The cursors. Thread-safe; each method is one transaction.

    Args:
        engine: the opened database.
        guard: called first where a hook was told: who tells it is one of several services.
    """

    def __init__(self, engine: Engine, *, guard: Guard = unguarded) -> None:
        self._engine = engine
        self._guard = guard

    def cursor(self, name: str, *, feed: Feed = Feed.JOBS) -> int:
        """Returns the number of the last event that a hook was told of; a new hook begins with what happens next."""
        query = select(_CURSORS[feed]).where(WEBHOOK_CURSORS.c.name == name)
        with reading(self._engine) as connection:
            found = connection.execute(query).scalar_one_or_none()
        if found is not None:
            return found
        with contextlib.suppress(IntegrityError), self._engine.begin() as connection:  # another service was quicker
            event = connection.execute(select(func.coalesce(func.max(JOB_EVENTS.c.seq), 0))).scalar_one()
            alert = connection.execute(select(func.coalesce(func.max(BUDGET_ALERTS.c.seq), 0))).scalar_one()
            connection.execute(insert(WEBHOOK_CURSORS).values(name=name, seq=event, alert_seq=alert))
        return self.cursor(name, feed=feed)

    def advance(self, name: str, *, seq: int, feed: Feed = Feed.JOBS) -> None:
        """Notes that a hook was told of all events up to one."""
        with writing(self._engine, guard=self._guard) as connection:
            changes = {_CURSORS[feed]: seq}
            connection.execute(update(WEBHOOK_CURSORS).where(WEBHOOK_CURSORS.c.name == name).values(changes))

    def events_after(self, seq: int, *, limit: int, feed: Feed = Feed.JOBS) -> list[HookEvent]:
        """Returns events in the order of their numbers."""
        if feed is Feed.ALERTS:
            return self._alerts_after(seq, limit)
        return select_job_events(self._engine, JOB_EVENTS.c.seq > seq, limit=limit)

    def _alerts_after(self, seq: int, limit: int) -> list[HookEvent]:
        query = select(BUDGET_ALERTS).where(BUDGET_ALERTS.c.seq > seq).order_by(BUDGET_ALERTS.c.seq).limit(limit)
        with reading(self._engine) as connection:
            return [
                HookEvent(
                    seq=row["seq"],
                    time_s=row["time_s"],
                    time=_timestamp(row["time_s"]),
                    project=row["project"],
                    kind=ALERT,
                    detail=row["text"],
                    alert=Alert(**{name: row[name] for name in ("project", "period", "share", "limit_usd")}),
                )
                for row in connection.execute(query).mappings()
            ]


def select_job_events(engine: Engine, *conditions: ColumnElement[bool], limit: int) -> list[HookEvent]:
    """Returns what happened to jobs, as far as the conditions hold, in the order of its numbers."""
    query = (
        select(JOB_EVENTS, JOBS.c.project, JOBS.c.job_id)
        .join(JOBS, JOBS.c.uid == JOB_EVENTS.c.job_uid)
        .where(*conditions)
        .order_by(JOB_EVENTS.c.seq)
        .limit(limit)
    )
    with reading(engine) as connection:
        return [
            HookEvent(
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
            for row in connection.execute(query).mappings()
        ]


def _timestamp(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, tz=UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
