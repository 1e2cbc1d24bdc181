"""What the trials of a search have come to, and what follows for the search. Pure functions of records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from lockstep.jobs.billing.bills import Bill, sum_bills
from lockstep.jobs.input.hyperparameters import HyperparameterSpec
from lockstep.jobs.running.ends import EndKind
from lockstep.jobs.running.states import TERMINAL, JobState
from lockstep.jobs.tuning import TrialResult, TrialState
from lockstep.service.store import JobRecord

_LOST: Final = frozenset({EndKind.NODE_LOST, EndKind.PREEMPTED, EndKind.PROVISIONING_TIMEOUT})
"""Ends that say nothing about a trial's parameters, which are proposed again. A program that was killed is not among
them: its parameters may need too much memory each time."""
LEAST_FAILED: Final = 3


def results_of(trials: Sequence[JobRecord]) -> list[TrialResult]:
    """Returns the trials of a search as its decisions take them, in the order of their numbers.

    A trial that has ended counts as running until all its measurements were read.

    Args:
        trials: the jobs of the trials.
    """
    return [result_of(job) for job in trials]


def result_of(job: JobRecord) -> TrialResult:
    """Returns a trial as the decisions of a search take it.

    Args:
        job: the job of the trial.
    """
    trial = job.trial
    assert trial is not None, "the job is a trial"
    result = TrialResult(
        number=trial.number,
        parameters=trial.parameters,
        state=TrialState.RUNNING,
        measurements=trial.measurements,
    )
    if job.state not in TERMINAL or not trial.is_read:
        return result
    return replace(result, state=_ended_state(job, has_value=result.objective is not None))


def _ended_state(job: JobRecord, *, has_value: bool) -> TrialState:
    kind = end_kind(job)
    if job.state is JobState.SUCCEEDED:
        return TrialState.COMPLETED if has_value else TrialState.FAILED
    if kind in (EndKind.STOPPED_EARLY, EndKind.CANCELLED):
        return TrialState.STOPPED if has_value else TrialState.FAILED
    return TrialState.LOST if kind in _LOST else TrialState.FAILED


def end_kind(job: JobRecord) -> EndKind | None:
    """Returns the kind of a job's end reason; None if it has none, or one that this version does not know."""
    name = (job.end_reason or "").partition("(")[0]
    return EndKind(name) if name in EndKind.__members__ else None


def is_stopped_early(job: JobRecord) -> bool:
    """Returns whether a search has stopped a trial early."""
    return end_kind(job) is EndKind.STOPPED_EARLY


def max_failed(spec: HyperparameterSpec) -> int:
    """Returns how many failed trials end a search: as it says, or half of its trials, and three at least.

    A search of fewer trials ends when all of them have failed.
    """
    return spec.max_failed_trials or max(LEAST_FAILED, math.ceil(spec.max_trials / 2))


def max_lost(spec: HyperparameterSpec) -> int:
    """Returns how many trials a search may lose to its machines: as many as it has."""
    return max(LEAST_FAILED, spec.max_trials)


def search_bill(trials: Sequence[JobRecord]) -> Bill:
    """Returns the bill of a search: the sum of its trials' bills, so far."""
    return sum_bills([job.bill for job in trials if job.bill is not None])
