"""What is read of many jobs: for the controller, for lists of what runs, and for prediction servers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from sqlalchemy import ColumnElement, Engine, Text, and_, cast, func, or_, select, true, tuple_

from lockstep.jobs.running.states import TERMINAL, JobState
from lockstep.service.store.control.job_rows import GangPart, read_jobs
from lockstep.service.store.control.records import JobKind, JobRecord, UnfinishedJob
from lockstep.service.store.control.replicas import read_first_reports, split_uids
from lockstep.service.store.database import reading
from lockstep.service.store.tables import JOBS

SUBMITTED: Final = JOBS.c.is_submitted.is_(True)
"""The condition for jobs that somebody submitted."""
HAS_GANG: Final = JOBS.c.kind != JobKind.SEARCH.value
"""The condition for jobs with replicas."""
_SEPARATOR: Final = ":"
_QUEUED: Final = JobState.QUEUED.value
_UNFINISHED: Final = tuple(state.value for state in JobState if state not in TERMINAL)
_PLACED: Final = tuple(state for state in _UNFINISHED if state != _QUEUED)


class JobReader:
    """Reads jobs from the database. Thread-safe. Each method is one transaction.

    Args:
        engine: the opened database.
        clock: the clock, in seconds since 1970 UTC.
    """

    def __init__(self, engine: Engine, *, clock: Callable[[], float] = time.time) -> None:
        self._engine = engine
        self._clock = clock

    def active_uids(self) -> dict[JobState, set[str]]:
        """Returns the uids of all queued jobs with replicas, and of those that `placed_jobs` returns, by state."""
        held = and_(JOBS.c.gang_released.is_(False), JOBS.c.state != _QUEUED)
        active = or_(JOBS.c.state.in_(_UNFINISHED), held)
        # A row for each state: thousands of rows take long to read beside other threads.
        query = select(JOBS.c.state, func.aggregate_strings(JOBS.c.uid, ",")).where(active, HAS_GANG)
        with reading(self._engine) as connection:
            rows = connection.execute(query.group_by(JOBS.c.state)).all()
        return {JobState(state): set(uids.split(",")) for state, uids in rows}

    def overdue(self) -> list[JobRecord]:
        """Returns the queued jobs that have exceeded their maximum wait time."""
        return self._oldest_first(
            and_(
                JOBS.c.max_wait_time_s.is_not(None),  # so that the index of these jobs is used
                JOBS.c.state == _QUEUED,
                JOBS.c.create_time_s + JOBS.c.max_wait_time_s < self._clock(),
                HAS_GANG,
            )
        )

    def awaiting_machines(self) -> list[JobRecord]:
        """Returns the queued jobs that wait again because their machines were unavailable."""
        return self._oldest_first(and_(JOBS.c.state == _QUEUED, JOBS.c.provisioning_time_s.is_not(None)))

    def placed_jobs(self, *, known: Mapping[str, JobRecord] | None = None) -> list[JobRecord]:
        """Returns every job past the queue that the controller still has to handle, the oldest first.

        These are the jobs that are not over, and the jobs whose gang the engine still holds.

        Args:
            known: records that were read earlier, by uid. Those of the same revision are returned as they are, so what
                their replicas report may have changed.
        """
        if known is None:
            return self._oldest_first(placed())
        # One row, because a row each takes long to read beside other threads.
        query = select(func.aggregate_strings(JOBS.c.uid + _SEPARATOR + cast(JOBS.c.revision, Text), ","))
        with reading(self._engine) as connection:
            found = connection.execute(query.where(placed())).scalar() or ""
            revisions = dict(pair.split(_SEPARATOR) for pair in found.split(",") if pair)
            same = [job for uid, number in revisions.items() if (job := known.get(uid)) and job.revision == int(number)]
            others = sorted(revisions.keys() - {job.uid for job in same})
            read = [job for some in split_uids(others) for job in read_jobs(connection, some)]
        return sorted([*same, *read], key=lambda job: (job.create_time_s, job.uid))

    def unfinished(self) -> list[UnfinishedJob]:
        """Returns every submitted job that is not over, including queued ones, the oldest first."""
        query = select(JOBS.c.uid, JOBS.c.job_id, JOBS.c.state).where(JOBS.c.state.in_(_UNFINISHED), SUBMITTED)
        with reading(self._engine) as connection:
            rows = connection.execute(query.order_by(JOBS.c.create_time_s, JOBS.c.uid))
            return [UnfinishedJob(uid, job_id, JobState(state)) for uid, job_id, state in rows]

    def count_unfinished(self) -> dict[JobState, int]:
        """Returns the number of submitted jobs in each state before the end that jobs are in."""
        query = select(JOBS.c.state, func.count()).where(JOBS.c.state.in_(_UNFINISHED), SUBMITTED)
        with reading(self._engine) as connection:
            return {JobState(state): number for state, number in connection.execute(query.group_by(JOBS.c.state))}

    def running(self) -> list[JobRecord]:
        """Returns the submitted jobs that run, the oldest first, without the orders of their gangs."""
        with reading(self._engine) as connection:
            return read_jobs(connection, _oldest_running(None), gang=GangPart.REPLICAS)

    def first_running(self, *, limit: int) -> list[JobRecord]:
        """Returns the first submitted jobs that run, the oldest first, each with the replica that reports its progress.

        Args:
            limit: the maximum number of jobs.
        """
        with reading(self._engine) as connection:
            found = read_jobs(connection, _oldest_running(limit), gang=GangPart.NONE)
            reports = read_first_reports(connection, [job.uid for job in found]) if found else {}
        return [replace(job, replicas=reports.get(job.uid, ())) for job in found]

    def servers(self, *, version_uid: str | None = None) -> list[JobRecord]:
        """Returns the prediction servers that are not over or whose gang the engine still holds, the oldest first.

        Args:
            version_uid: the uid of the version that they serve; None for those of all versions.
        """
        is_left = or_(JOBS.c.state.in_(_UNFINISHED), _left_queue())
        wanted = true() if version_uid is None else JOBS.c.version_uid == version_uid
        return self._oldest_first(and_(is_left, JOBS.c.kind == JobKind.SERVER.value, wanted))

    def servers_between(
        self, version_uid: str, *, since_s: float | None, until_s: float, first: JobRecord | None, limit: int
    ) -> list[JobRecord]:
        """Returns prediction servers of a version that ran at some time in an interval, the oldest first.

        Args:
            version_uid: the uid of the version.
            since_s: the start of the interval, in seconds since 1970 UTC; None for servers that are not over.
            until_s: its end.
            first: the server to begin with, or with the next one if it did not run in the interval; None for the first.
            limit: the maximum number of servers.
        """
        key, is_left = (JOBS.c.create_time_s, JOBS.c.uid), JOBS.c.end_time_s.is_(None)
        ended = is_left if since_s is None else or_(is_left, JOBS.c.end_time_s > since_s)
        query = select(JOBS.c.uid).where(JOBS.c.version_uid == version_uid, JOBS.c.start_time_s < until_s, ended)
        if first is not None:
            query = query.where(tuple_(*key) >= tuple_(first.create_time_s, first.uid))
        with reading(self._engine) as connection:
            uids = list(connection.execute(query.order_by(*key).limit(limit)).scalars())
            return read_jobs(connection, JOBS.c.uid.in_(uids)) if uids else []

    def last_server(self, version_uid: str, *, job_id: str | None = None) -> JobRecord | None:
        """Returns a version's prediction server by its name, or the one started last; None if there is none."""
        if job_id is not None:
            named = and_(JOBS.c.version_uid == version_uid, JOBS.c.job_id == job_id)
            return next(iter(self._oldest_first(named)), None)
        query = select(func.max(JOBS.c.create_time_s)).where(JOBS.c.version_uid == version_uid)
        last = and_(JOBS.c.version_uid == version_uid, JOBS.c.create_time_s == query.scalar_subquery())
        return next(iter(self._oldest_first(last)), None)

    def _oldest_first(self, condition: ColumnElement[bool]) -> list[JobRecord]:
        with reading(self._engine) as connection:
            return read_jobs(connection, condition)


def _oldest_running(limit: int | None) -> ColumnElement[bool]:
    running = select(JOBS.c.uid).where(JOBS.c.state == JobState.RUNNING.value, SUBMITTED)
    return JOBS.c.uid.in_(running.order_by(JOBS.c.create_time_s, JOBS.c.uid).limit(limit))


def placed() -> ColumnElement[bool]:
    """Returns the condition for the jobs that `JobStore.placed_jobs` returns."""
    return and_(_left_queue(), HAS_GANG)


def _left_queue() -> ColumnElement[bool]:
    held = and_(JOBS.c.gang_released.is_(False), JOBS.c.state != _QUEUED)
    return or_(JOBS.c.state.in_(_PLACED), held)
