"""The sizes of jobs' folders in the bucket: a row for each change of a size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, final

from sqlalchemy import Engine, Select, and_, func, insert, or_, select, update

from lockstep.jobs.billing.served_models import served_model
from lockstep.jobs.billing.storage_costs import StoredSpan
from lockstep.jobs.running.states import JobState
from lockstep.service.store.database import Guard, reading, unguarded, writing
from lockstep.service.store.tables import JOBS, STORED_SIZES

_COLUMNS: Final = select(JOBS.c.uid, JOBS.c.project, JOBS.c.job_id, JOBS.c.create_time_s).where(
    JOBS.c.is_submitted.is_(True)  # trials have folders within their search's
)


@final
@dataclass(frozen=True, kw_only=True)
class KeepingJob:
    """A job that may have a folder in the bucket.

    Attributes:
        uid: the service's identifier of the job.
        project: the project of the job.
        job_id: the name of the job.
        create_time_s: the time of its creation, in seconds since 1970 UTC.
    """

    uid: str
    project: str
    job_id: str
    create_time_s: float


@final
class StoredSizeStore:
    """Records sizes of jobs' folders. Thread-safe; each method is one transaction.

    Args:
        engine: the opened database.
        guard: called in each transaction that writes, before it does; may forbid it by raising.
    """

    def __init__(self, engine: Engine, *, guard: Guard = unguarded) -> None:
        self._engine = engine
        self._guard = guard

    def active_since(self, time_s: float, *, limit: int) -> list[KeepingJob]:
        """Returns jobs that have left the queue and had not ended at a time, the newest first.

        Args:
            time_s: the time, in seconds since 1970 UTC.
            limit: the maximum number of jobs.
        """
        has_left = and_(JOBS.c.end_time_s.is_(None), JOBS.c.state != JobState.QUEUED.value)
        is_active = or_(has_left, JOBS.c.end_time_s >= time_s)
        return self._jobs(_COLUMNS.where(is_active).order_by(JOBS.c.create_time_s.desc()).limit(limit))

    def jobs_after(self, last: KeepingJob | None, *, limit: int) -> list[KeepingJob]:
        """Returns jobs, the oldest first.

        Args:
            last: the last job of the previous page; None for the first page.
            limit: the maximum number of jobs.
        """
        query = _COLUMNS.order_by(JOBS.c.create_time_s, JOBS.c.uid).limit(limit)
        if last is not None:
            same = and_(JOBS.c.create_time_s == last.create_time_s, JOBS.c.uid > last.uid)
            query = query.where(or_(JOBS.c.create_time_s > last.create_time_s, same))
        return self._jobs(query)

    def record(self, uid: str, *, size_bytes: int, time_s: float) -> None:
        """Records the size of a job's folder. Does nothing if the size has not changed.

        Args:
            uid: the job.
            size_bytes: the size in bytes.
            time_s: the time of the measurement, in seconds since 1970 UTC.
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
        """Returns what jobs stored in an interval. A present size counts until its end.

        Args:
            project: the project of the jobs; None for all.
            since_s: the start of the interval, in seconds since 1970 UTC.
            until_s: its end.
        """
        end_s = func.coalesce(STORED_SIZES.c.end_time_s, until_s).label("until_s")
        query = (
            select(STORED_SIZES, end_s, JOBS.c.project, JOBS.c.job_id, JOBS.c.labels, JOBS.c.prediction_input)
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
                    # Only jobs that somebody submitted have a folder.
                    served=served_model(row["job_id"], is_server=False, prediction_input=row["prediction_input"]),
                )
                for row in connection.execute(query).mappings()
            ]

    def _jobs(self, query: Select[Any, Any, Any, Any]) -> list[KeepingJob]:
        with reading(self._engine) as connection:
            return [KeepingJob(**row) for row in connection.execute(query).mappings()]
