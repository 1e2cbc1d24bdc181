"""Searches over hyperparameters in the database, and their trials. A trial is a job that belongs to a search."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final, final

from sqlalchemy import Engine, and_, insert, select, update
from sqlalchemy.exc import IntegrityError

from lockstep.jobs.running.states import TERMINAL, JobEvent, JobState
from lockstep.service.store.control.changes import REVISED
from lockstep.service.store.control.job_rows import read_jobs, record_event
from lockstep.service.store.control.records import JobKind, JobRecord
from lockstep.service.store.control.trials import TrialRecord
from lockstep.service.store.database import Guard, reading, unguarded, writing
from lockstep.service.store.tables import JOBS

_SEARCHING: Final = (JobState.QUEUED, JobState.PREPARING, JobState.RUNNING)
"""The states in which a search may get another trial."""


@final
class SearchStore:
    """The store of searches and their trials. Thread-safe. Each method is one transaction.

    Args:
        engine: the opened database.
        clock: the clock, in seconds since 1970 UTC.
        guard: called in each transaction before it writes; it may raise an exception to forbid the transaction.
    """

    def __init__(self, engine: Engine, *, clock: Callable[[], float] = time.time, guard: Guard = unguarded) -> None:
        self._engine = engine
        self._clock = clock
        self._guard = guard

    def unfinished(self) -> list[JobRecord]:
        """Returns every search that is not over, the oldest first."""
        is_over = JOBS.c.state.in_([state.value for state in TERMINAL])
        with reading(self._engine) as connection:
            return read_jobs(connection, and_(JOBS.c.kind == JobKind.SEARCH.value, ~is_over))

    def trials(self, search_uid: str) -> list[JobRecord]:
        """Returns all trials of a search, in the order of their numbers."""
        with reading(self._engine) as connection:
            found = read_jobs(connection, JOBS.c.search_uid == search_uid)
        return sorted(found, key=lambda job: 0 if job.trial is None else job.trial.number)

    def add_trial(
        self,
        search: JobRecord,
        *,
        trial: TrialRecord,
        training_input: Mapping[str, Any],
        outputs: Mapping[str, str],
    ) -> bool:
        """Records a trial as a job that is QUEUED, unless its search is ending or has a trial of this number.

        Args:
            search: the search.
            trial: the trial.
            training_input: its training input, in the contract's JSON.
            outputs: the bucket URLs of its outputs, by kind.

        Returns:
            Whether it was recorded.
        """
        uid, now_s = uuid.uuid4().hex, self._clock()
        values = {
            "uid": uid,
            "project": search.project,
            "job_id": trial_job_id(search.job_id, number=trial.number),
            "kind": JobKind.TRIAL.value,
            "is_submitted": False,
            "search_uid": search.uid,
            "trial": trial,
            "training_input": dict(training_input),
            "labels": dict(search.labels),
            "state": JobState.QUEUED.value,
            "priority": search.priority,
            "max_wait_time_s": search.max_wait_time_s,
            "create_time_s": now_s,
            "simulated": search.simulated,
            "outputs": dict(outputs),
            "submitted_by": search.submitted_by,
        }
        try:
            with writing(self._engine, guard=self._guard) as connection:
                asked = select(JOBS.c.state).where(JOBS.c.uid == search.uid).with_for_update()
                if JobState(connection.execute(asked).scalar_one()) not in _SEARCHING:
                    return False
                connection.execute(insert(JOBS).values(values))
                detail = f"trial {trial.number} of {search.job_id}"
                record_event(connection, uid, JobEvent.ENQUEUED, detail=detail, time_s=now_s)
        except IntegrityError:  # recorded already
            return False
        return True

    def set_trial(self, uid: str, trial: TrialRecord) -> None:
        """Records what is known of a trial, by the uid of its job."""
        with writing(self._engine, guard=self._guard) as connection:
            connection.execute(update(JOBS).where(JOBS.c.uid == uid).values({**REVISED, "trial": trial}))


def trial_job_id(search: str, *, number: int) -> str:
    """Returns the name of a trial's job, such as ``digits.3``. No submitted job can have such a name.

    Args:
        search: the name of the search.
        number: the number of the trial, from 1.
    """
    return f"{search}.{number}"
