"""The loop over searches: it starts their trials, stops some of them early, and ends the searches.

As in the controller, what is to be done follows from the records in the database, so the loop can be killed at any
line. A trial is recorded together with its job in one transaction, under a name that only one trial can have. The loop
has a thread of its own: proposals and buckets may take seconds, and jobs must not wait for them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, final

from lockstep.errors import ConfigError, LockstepError, NotFoundError, StorageError, WrongStateError
from lockstep.jobs.input.hyperparameters import HyperparameterSpec, TuningOptions
from lockstep.jobs.running.ends import EndKind, EndReason
from lockstep.jobs.running.states import TERMINAL, JobEvent, JobState
from lockstep.jobs.tuning import TrialResult, TrialState, find_stoppable, num_trials, propose
from lockstep.service.control.job_inputs import training_input_of
from lockstep.service.control.job_outputs import open_output
from lockstep.service.store import (
    DATABASE_FAULTS,
    JobKind,
    JobRecord,
    JobStore,
    LeaseLostError,
    SearchStore,
    TrialRecord,
)
from lockstep.service.telemetry.scalars import ScalarCache
from lockstep.service.tuning.measuring import MAX_POINTS, tags_of, with_points
from lockstep.service.tuning.results import max_failed, max_lost, result_of, results_of, search_bill
from lockstep.service.tuning.trial_inputs import trial_input, trial_outputs

LOGGER: Final = logging.getLogger(__name__)

PASS_S: Final = 1.0
"""The time between two passes, in seconds."""
MEASURE_S: Final = 5.0
"""How often the measurements of a running trial are read, in seconds."""
GIVE_UP_S: Final = 600.0
"""How long the measurements of a trial that has ended are tried to read, in seconds."""
MAX_RESUMED: Final = 100
"""The maximum number of earlier searches whose trials a search takes into account, one resuming the other."""
OUTPUT: Final = "tensorboard"


@final
class Searches:
    """Advances searches.

    Args:
        store: the store of searches.
        jobs: the store of jobs.
        scalars: reads the curves that trials write.
        bucket: the URL of the service's default bucket.
        wake: called when a job was queued.
        clock: the clock, in seconds since 1970 UTC.
        measure_every_s: how often the measurements of a running trial are read, in seconds.
    """

    def __init__(
        self,
        *,
        store: SearchStore,
        jobs: JobStore,
        scalars: ScalarCache,
        bucket: str,
        wake: Callable[[], object],
        clock: Callable[[], float] = time.time,
        measure_every_s: float = MEASURE_S,
    ) -> None:
        self._store = store
        self._jobs = jobs
        self._scalars = scalars
        self._bucket = bucket
        self._wake = wake
        self._clock = clock
        self._measure_every_s = measure_every_s
        self._measured_s: dict[str, float] = {}

    def run(self, stop: threading.Event, *, has_lease: Callable[[], bool]) -> None:
        """Makes passes until `stop` is set.

        Args:
            stop: ends the loop.
            has_lease: whether this service is the one that acts.
        """
        while not stop.wait(PASS_S):
            if has_lease():
                self.step()

    def step(self) -> None:
        """Makes one pass over all searches. The errors of one do not affect the others."""
        try:
            searches = self._store.unfinished()
            for search in searches:
                try:
                    self._advance(search)
                except ConfigError as error:
                    self._fail_unreadable(search, error)
                except WrongStateError as error:
                    LOGGER.info("search %s moved on meanwhile: %s", search.job_id, error)
                except (LeaseLostError, *DATABASE_FAULTS):
                    raise
                except Exception:  # a bug, which must not affect other searches
                    LOGGER.exception("search %s", search.job_id)
        except LeaseLostError as error:
            LOGGER.warning("%s", error)
        except DATABASE_FAULTS as error:
            LOGGER.warning("searches wait for the database: %s", error)

    def _advance(self, search: JobRecord) -> None:
        trials = [self._measured(job) for job in self._store.trials(search.uid)]
        if search.state is JobState.CANCELLING:
            detail = f"its search ends: {search.error_message or 'it was cancelled'}"
            if self._end_trials(trials, EndReason(kind=EndKind.SEARCH_ENDED), detail=detail):
                detail = "no trial runs any more" if trials else "it had no trials"
                self._end(search, trials, JobEvent.CANCELLED, detail=detail, reason=search.end_reason)
            return
        search = self._record_start(search, trials)
        asked = training_input_of(search)
        spec, options = asked.hyperparameters, asked.lockstep.tuning
        assert spec is not None, "the job is a search"
        if self._is_over_time(search, limit_s=asked.scheduling.max_running_time_s):
            return
        failure = _failure(spec, trials)
        if failure is not None:
            if self._end_trials(trials, EndReason(kind=EndKind.SEARCH_ENDED), detail=f"its search ends: {failure}"):
                reason = str(EndReason(kind=EndKind.TRIALS_FAILED))
                self._end(search, trials, JobEvent.FAILED, detail=failure, reason=reason, error_message=failure)
            return
        earlier = self._earlier_results(search)
        self._stop_early(trials, spec=spec, options=options, earlier=earlier)
        is_over = self._propose(search, trials, spec=spec, options=options, earlier=earlier)
        if is_over:
            self._finish(search, trials, metric=spec.hyperparameter_metric_tag)

    def _measured(self, job: JobRecord) -> JobRecord:
        """Returns a trial with the values of its metric that are there by now, which are recorded."""
        trial = job.trial
        assert trial is not None, "the job is a trial"
        is_over, now_s = job.state in TERMINAL, self._clock()
        if trial.is_read:
            return job
        is_due = now_s - self._measured_s.get(job.uid, 0) >= self._measure_every_s
        if not is_over and not (job.state is JobState.RUNNING and is_due):
            return job
        self._measured_s[job.uid] = now_s
        found = trial
        try:
            folder = open_output(job, OUTPUT, bucket=self._bucket)
            scalars = self._scalars.read(job.uid, folder, tags=tags_of(trial.metric), max_points=MAX_POINTS)
            found = replace(with_points(trial, scalars), is_read=is_over and not scalars.more)
        except NotFoundError:  # it writes no event files
            found = replace(trial, is_read=is_over)
        except StorageError as error:
            if is_over and now_s - (job.end_time_s or now_s) > GIVE_UP_S:
                found = replace(trial, is_read=True)
                self._jobs.record_event(job.uid, kind="not_measured", detail=f"its metric could not be read: {error}")
        if found != trial:
            self._store.set_trial(job.uid, found)
        if found.is_read:
            self._measured_s.pop(job.uid, None)
        return replace(job, trial=found)

    def _record_start(self, search: JobRecord, trials: Sequence[JobRecord]) -> JobRecord:
        """Records that the first trial left the queue, and that it runs."""
        left = [job for job in trials if job.state is not JobState.QUEUED]
        if search.state is JobState.QUEUED and left:
            search = self._jobs.advance(search.uid, JobEvent.PREPARING, detail=f"{left[0].job_id} has left the queue")
        started = [job.start_time_s for job in trials if job.start_time_s is not None]
        if search.state is JobState.PREPARING and started:
            search = self._jobs.advance(
                search.uid,
                JobEvent.STARTED,
                detail="the first trial runs",
                time_s=min(started),
                start_time_s=min(started),
                run_start_time_s=min(started),
            )
        return search

    def _is_over_time(self, search: JobRecord, *, limit_s: float) -> bool:
        if search.run_start_time_s is None or self._clock() - search.run_start_time_s <= limit_s:
            return False
        detail = f"ran longer than scheduling.maxRunningTime, {limit_s:.0f} s"
        kind = EndKind.MAX_RUNNING_TIME.value
        self._jobs.advance(search.uid, JobEvent.CANCEL_REQUESTED, detail=detail, error_message=detail, end_reason=kind)
        return True

    def _end_trials(self, trials: Sequence[JobRecord], reason: EndReason, *, detail: str) -> bool:
        """Requests the end of all trials that are not over; returns whether all are over and were read."""
        for job in trials:
            if job.state not in (JobState.CANCELLING, *TERMINAL):
                self._request_end(job, reason, detail=detail)
        return all(result.state is not TrialState.RUNNING for result in results_of(trials))

    def _request_end(self, job: JobRecord, reason: EndReason, *, detail: str) -> None:
        try:
            self._jobs.advance(job.uid, JobEvent.CANCEL_REQUESTED, detail=detail, end_reason=str(reason))
        except WrongStateError:  # it ended meanwhile
            return
        self._wake()

    def _stop_early(
        self,
        trials: Sequence[JobRecord],
        *,
        spec: HyperparameterSpec,
        options: TuningOptions,
        earlier: Sequence[TrialResult],
    ) -> None:
        by_number = {job.trial.number: job for job in trials if job.trial is not None}
        known = [*earlier, *results_of(trials)]
        for number, why in find_stoppable(spec, options=options, trials=known).items():
            job = by_number[number]
            if job.state not in (JobState.CANCELLING, *TERMINAL):
                self._request_end(job, EndReason(kind=EndKind.STOPPED_EARLY), detail=f"stopped early: {why}")

    def _propose(
        self,
        search: JobRecord,
        trials: Sequence[JobRecord],
        *,
        spec: HyperparameterSpec,
        options: TuningOptions,
        earlier: Sequence[TrialResult],
    ) -> bool:
        """Starts as many trials as may run beside each other; returns whether the search needs no more, and none runs.

        A trial that was lost does not count: its parameters are proposed again.
        """
        own = results_of(trials)
        while True:
            num_open = sum(result.state is TrialState.RUNNING for result in own)
            num_made = sum(result.state is not TrialState.LOST for result in own)
            if num_open >= spec.max_parallel_trials or num_made >= num_trials(spec):
                return num_open == 0
            parameters = propose(spec, trials=[*earlier, *own], seed=options.seed)
            if parameters is None:  # every point of the space was tried
                return num_open == 0
            number = len(own) + 1
            recorded = self._store.add_trial(
                search,
                trial=TrialRecord(number=number, metric=spec.hyperparameter_metric_tag, parameters=parameters),
                training_input=trial_input(search, number=number, parameters=parameters),
                outputs=trial_outputs(search, number=number, bucket=self._bucket),
            )
            if not recorded:  # the search was cancelled meanwhile
                return False
            own.append(TrialResult(number=number, parameters=parameters, state=TrialState.RUNNING))
            self._wake()

    def _earlier_results(self, search: JobRecord) -> list[TrialResult]:
        """Returns the ended trials of the searches that a search resumes, the first search's first."""
        found: list[list[TrialResult]] = []
        seen = {search.job_id}
        asked = training_input_of(search).hyperparameters
        while asked is not None and asked.resume_previous_job_id not in (None, *seen) and len(seen) < MAX_RESUMED:
            seen.add(asked.resume_previous_job_id)
            try:
                previous = self._jobs.get(project=search.project, job_id=asked.resume_previous_job_id)
            except NotFoundError:
                break
            results = [result_of(job) for job in self._store.trials(previous.uid)]
            found.append([r for r in results if r.state not in (TrialState.RUNNING, TrialState.LOST)])
            asked = training_input_of(previous).hyperparameters if previous.kind is JobKind.SEARCH else None
        return [result for results in reversed(found) for result in results]

    def _finish(self, search: JobRecord, trials: Sequence[JobRecord], *, metric: str) -> None:
        results = results_of(trials)
        num_measured = sum(result.state in (TrialState.COMPLETED, TrialState.STOPPED) for result in results)
        if num_measured and search.state is JobState.RUNNING:
            detail = f"{num_measured} of {len(results)} trials have a value of {metric}"
            self._end(search, trials, JobEvent.SUCCEEDED, detail=detail, reason=None)
            return
        message = f"no trial has a value of the metric {metric}"
        reason = str(EndReason(kind=EndKind.TRIALS_FAILED))
        self._end(search, trials, JobEvent.FAILED, detail=message, reason=reason, error_message=message)

    def _end(
        self,
        search: JobRecord,
        trials: Sequence[JobRecord],
        event: JobEvent,
        *,
        detail: str,
        reason: str | None,
        error_message: str | None = None,
    ) -> None:
        changes: dict[str, Any] = {} if error_message is None else {"error_message": error_message}
        self._jobs.advance(
            search.uid,
            event,
            detail=detail,
            end_time_s=self._clock(),
            end_reason=reason,
            bill=search_bill(trials),
            **changes,
        )

    def _fail_unreadable(self, search: JobRecord, error: LockstepError) -> None:
        message = f"this version of the service cannot read the search: {error}"
        LOGGER.error("search %s: %s", search.job_id, message)
        trials = self._store.trials(search.uid)
        if self._end_trials(trials, EndReason(kind=EndKind.SEARCH_ENDED), detail=message):
            self._end(search, trials, JobEvent.FAILED, detail=message, reason=None, error_message=message)


def _failure(spec: HyperparameterSpec, trials: Sequence[JobRecord]) -> str | None:
    """Returns why a search fails before its trials are done; None if it does not."""
    results = results_of(trials)
    failed = [job for job, result in zip(trials, results, strict=True) if result.state is TrialState.FAILED]
    lost = [job for job, result in zip(trials, results, strict=True) if result.state is TrialState.LOST]
    if len(failed) >= max_failed(spec):
        return f"{len(failed)} trials failed; the last one, {failed[-1].job_id}: {_why(failed[-1])}"
    if len(lost) > max_lost(spec):
        return f"{len(lost)} trials were lost; the last one, {lost[-1].job_id}: {_why(lost[-1])}"
    return None


def _why(job: JobRecord) -> str:
    if job.state is JobState.SUCCEEDED and job.trial is not None:
        return f"it reported no value of the metric {job.trial.metric}"
    message = (job.error_message or "").partition("\n")[0]
    return message or job.end_reason or "it was cancelled"
