"""How much each job keeps in the bucket, and since when: a row for each change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, final

from sqlalchemy import Engine, Select, and_, func, insert, or_, select, update

from lockstep.jobs.billing.storage_costs import StoredSpan
from lockstep.jobs.running.states import JobState
from lockstep.service.store.database import Guard, reading, unguarded, writing
from lockstep.service.store.tables import JOBS, STORED_SIZES

_COLUMNS: Final = select(JOBS.c.uid, JOBS.c.project, JOBS.c.job_id, JOBS.c.create_time_s)


@final
@dataclass(frozen=True, kw_only=True)
class KeepingJob:
    """A job that may keep something.

    Attributes:
        uid: names it for ever.
        project: its project.
        job_id: its name.
        create_time_s: when it was created, seconds since 1970 UTC.
    """

    uid: str
    project: str
    job_id: str
    create_time_s: float


@final
class StoredSizeStore:
    """Sizes. Thread-safe; each method is one transaction.

    Args:
        engine: the opened database.
        guard: called in each transaction that writes, before it does; may forbid it by raising.
    """

    def __init__(self, engine: Engine, *, guard: Guard = unguarded) -> None:
        self._engine = engine
        self._guard = guard

    def active_since(self, time_s: float, *, limit: int) -> list[KeepingJob]:
        """Returns jobs that have left the queue and were not over at a time, the newest first.

        Args:
            time_s: seconds since 1970 UTC.
            limit: how many at the most.
        """
        has_left = and_(JOBS.c.end_time_s.is_(None), JOBS.c.state != JobState.QUEUED.value)
        is_active = or_(has_left, JOBS.c.end_time_s >= time_s)
        return self._jobs(_COLUMNS.where(is_active).order_by(JOBS.c.create_time_s.desc()).limit(limit))

    def jobs_after(self, last: KeepingJob | None, *, limit: int) -> list[KeepingJob]:
        """Returns jobs, the oldest first.

        Args:
            last: the last one of the page before.
            limit: how many at the most.
        """
        query = _COLUMNS.order_by(JOBS.c.create_time_s, JOBS.c.uid).limit(limit)
        if last is not None:
            same = and_(JOBS.c.create_time_s == last.create_time_s, JOBS.c.uid > last.uid)
            query = query.where(or_(JOBS.c.create_time_s > last.create_time_s, same))
        return self._jobs(query)

    def record(self, uid: str, *, size_bytes: int, time_s: float) -> None:
        """Notes how much a job keeps; nothing, where it is what it was.

        Args:
            uid: the job.
            size_bytes: how much.
            time_s: since when, seconds since 1970 UTC.
        """
        current = and_(STORED_SIZES.c.job_uid == uid, STORED_SIZES.c.end_time_s.is_(None))
        with writing(self._engine, guard=self._guard) as connection:
            before = connection.execute(select(STORED_SIZES.c.size_bytes).where(current)).scalar_one_or_none()
            if size_bytes == (before or 0):
                return
            connection.execute(update(STORED_SIZES).where(current).values(end_time_s=time_s))
            if size_bytes:
                values = {"job_uid": uid, "start_time_s": time_s, "size_bytes": size_bytes}
                connection.execute(insert(STORED_SIZES).values(values))

    def between(self, *, project: str | None, since_s: float, until_s: float) -> list[StoredSpan]:
        """Returns what jobs kept between two times; what they still keep, until the later one.

        Args:
            project: whose jobs; None for all.
            since_s: the earlier time, seconds since 1970 UTC.
            until_s: the later one.
        """
        end_s = func.coalesce(STORED_SIZES.c.end_time_s, until_s).label("until_s")
        query = (
            select(STORED_SIZES, end_s, JOBS.c.project, JOBS.c.job_id, JOBS.c.labels)
            .join(JOBS, JOBS.c.uid == STORED_SIZES.c.job_uid)
            .where(STORED_SIZES.c.start_time_s < until_s, end_s > since_s)
            .order_by(STORED_SIZES.c.start_time_s)
        )
        if project is not None:
            query = query.where(JOBS.c.project == project)
        with reading(self._engine) as connection:
            return [
                StoredSpan(
                    project=row["project"],
                    job=row["job_id"],
                    labels=dict(row["labels"]),
                    size_bytes=row["size_bytes"],
                    start_s=row["start_time_s"],
                    end_s=row["until_s"],
                )
                for row in connection.execute(query).mappings()
            ]

    def _jobs(self, query: Select[Any, Any, Any, Any]) -> list[KeepingJob]:
        with reading(self._engine) as connection:
            return [KeepingJob(**row) for row in connection.execute(query).mappings()]
