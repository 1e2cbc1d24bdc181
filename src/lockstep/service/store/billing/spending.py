"""What spending is added up from, the days that are added up for good, and the alerts that were raised."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, final

from sqlalchemy import Engine, RowMapping, and_, func, insert, or_, select
from sqlalchemy.exc import IntegrityError

from lockstep.jobs.billing.bills import round_half_up
from lockstep.jobs.billing.budgets import Alert
from lockstep.jobs.billing.spending import Spent
from lockstep.jobs.running.states import JobEvent
from lockstep.service.store.control.jobs import attempt_record
from lockstep.service.store.control.records import AttemptRecord
from lockstep.service.store.database import Guard, reading, unguarded, writing
from lockstep.service.store.tables import BUDGET_ALERTS, JOB_ATTEMPTS, JOB_EVENTS, SPENT_DAYS

DAY_DECIMALS: Final = 9
"""To how many decimals of a dollar what was spent on a day is kept, half up."""

_ENDS: Final = tuple(
    kind.value for kind in (JobEvent.RESTARTED, JobEvent.SUCCEEDED, JobEvent.FAILED, JobEvent.CANCELLED)
)

Place = tuple[float, str, int]
"""Where an ended start stands among all: when it ended, its job's uid, and which start it was."""


@final
@dataclass(frozen=True, kw_only=True)
class EndedStart:
    """One start of a job's gang that is over.

    Attributes:
        uid: the job.
        attempt: the start.
    """

    uid: str
    attempt: AttemptRecord

    @property
    def place(self) -> Place:
        """Where it stands among all."""
        return self.attempt.end_time_s, self.uid, self.attempt.attempt


@final
class SpendingStore:
    """Reads starts that are over, a page at a time; keeps days and alerts. Thread-safe; each method is one transaction.

    Args:
        engine: the opened database.
        guard: called in each transaction that writes, before it does; may forbid it by raising.
    """

    def __init__(self, engine: Engine, *, guard: Guard = unguarded) -> None:
        self._engine = engine
        self._guard = guard

    def last_end(self) -> int:
        """Returns the number of the last event by which a start of a gang is over; 0 where there is none.

        Not of any event: on PostgreSQL one that somebody else records may be there before the controller's, which has a
        smaller number.
        """
        query = select(func.coalesce(func.max(JOB_EVENTS.c.seq), 0)).where(JOB_EVENTS.c.kind.in_(_ENDS))
        with reading(self._engine) as connection:
            return connection.execute(query).scalar_one()

    def ends_after(self, seq: int, *, limit: int) -> list[tuple[int, str]]:
        """Returns events by which a start of a gang is over, each by its number and the job's uid, the earliest first.

        They are the controller's alone, which records one after the other: none of them appears late.

        Args:
            seq: the number of the last event that was seen.
            limit: how many at the most.
        """
        query = (
            select(JOB_EVENTS.c.seq, JOB_EVENTS.c.job_uid)
            .where(JOB_EVENTS.c.seq > seq, JOB_EVENTS.c.kind.in_(_ENDS))
            .order_by(JOB_EVENTS.c.seq)
            .limit(limit)
        )
        with reading(self._engine) as connection:
            return [(number, uid) for number, uid in connection.execute(query)]

    def starts_of(self, uids: Collection[str]) -> list[EndedStart]:
        """Returns the starts of some jobs that are over."""
        query = select(JOB_ATTEMPTS).where(JOB_ATTEMPTS.c.job_uid.in_(uids))
        with reading(self._engine) as connection:
            return [_start(row) for row in connection.execute(query).mappings()]

    def starts_since(self, time_s: float, *, after: Place | None, limit: int) -> list[EndedStart]:
        """Returns starts that were not over at a time, in the order of their places.

        Args:
            time_s: seconds since 1970 UTC.
            after: the place of the last one of the page before.
            limit: how many at the most.
        """
        columns = (JOB_ATTEMPTS.c.end_time_s, JOB_ATTEMPTS.c.job_uid, JOB_ATTEMPTS.c.attempt)
        query = select(JOB_ATTEMPTS).where(JOB_ATTEMPTS.c.end_time_s >= time_s).order_by(*columns).limit(limit)
        if after is not None:
            end_s, uid, attempt = after
            same_job = and_(columns[0] == end_s, columns[1] == uid, columns[2] > attempt)
            same_end = and_(columns[0] == end_s, columns[1] > uid)
            query = query.where(or_(columns[0] > end_s, same_end, same_job))
        with reading(self._engine) as connection:
            return [_start(row) for row in connection.execute(query).mappings()]

    def last_starts_before(self, time_s: float, *, limit: int) -> list[EndedStart]:
        """Returns starts that were over at a time, the last one first."""
        query = (
            select(JOB_ATTEMPTS)
            .where(JOB_ATTEMPTS.c.end_time_s < time_s)
            .order_by(JOB_ATTEMPTS.c.end_time_s.desc())
            .limit(limit)
        )
        with reading(self._engine) as connection:
            return [_start(row) for row in connection.execute(query).mappings()]

    def days_since(self, day: str) -> dict[tuple[str, str], Spent]:
        """Returns what was spent on the days that are added up for good, by project and day.

        Args:
            day: the first one, such as ``2026-11-01``.
        """
        with reading(self._engine) as connection:
            rows = connection.execute(select(SPENT_DAYS).where(SPENT_DAYS.c.day >= day)).mappings()
            return {(row["project"], row["day"]): _spent(row) for row in rows}

    def close_day(self, day: str, *, spent: Mapping[str, Spent]) -> Mapping[str, Spent]:
        """Keeps what projects spent on a day for good; what is kept already stays.

        Args:
            day: the day.
            spent: by project.

        Returns:
            The same, but for what was kept already, as it is kept.
        """
        with writing(self._engine, guard=self._guard) as connection:
            found = connection.execute(select(SPENT_DAYS).where(SPENT_DAYS.c.day == day)).mappings()
            kept = {row["project"]: _spent(row) for row in found}
            rows = [
                {
                    "project": project,
                    "day": day,
                    "owed_usd": f"{round_half_up(found.owed_usd, decimals=DAY_DECIMALS):f}",
                    "simulated_usd": f"{round_half_up(found.simulated_usd, decimals=DAY_DECIMALS):f}",
                    "unpriced": list(found.unpriced),
                }
                for project, found in spent.items()
                if project not in kept
            ]
            if rows:
                connection.execute(insert(SPENT_DAYS), rows)
        return {**spent, **kept}

    def raise_alert(self, alert: Alert, *, text: str, time_s: float) -> bool:
        """Records an alert; returns whether it is a new one.

        Args:
            alert: which share of what.
            text: what it says.
            time_s: seconds since 1970 UTC.
        """
        values = {
            "project": alert.project,
            "period": alert.period,
            "share": alert.share,
            "limit_usd": alert.limit_usd,
            "text": text,
            "time_s": time_s,
        }
        try:
            with writing(self._engine, guard=self._guard) as connection:
                connection.execute(insert(BUDGET_ALERTS).values(values))
        except IntegrityError:
            return False
        return True


def _spent(row: RowMapping) -> Spent:
    return Spent(
        owed_usd=Fraction(row["owed_usd"]),
        simulated_usd=Fraction(row["simulated_usd"]),
        unpriced=tuple(row["unpriced"]),
    )


def _start(row: RowMapping) -> EndedStart:
    return EndedStart(uid=row["job_uid"], attempt=attempt_record(row))
