"""Decides which running trials of a search are stopped early.

Two rules: the median rule of Google Vizier (Golovin et al., 2017, section 3.2.2), and asynchronous successive halving,
ASHA, in the form that stops trials and never pauses them (Li et al., 2018), as Optuna's and Ray Tune's. Both compare
what trials had reached after equally many measurements or steps, so trials may run at different times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Final

from lockstep.jobs.input.hyperparameters import EarlyStopping, Goal, HyperparameterSpec, TuningOptions
from lockstep.jobs.tuning.trials import Measurement, TrialResult, TrialState, is_better

MIN_COMPLETED_TRIALS: Final = 5
"""The number of completed trials from which on the median rule stops others."""


def find_stoppable(
    spec: HyperparameterSpec, *, options: TuningOptions, trials: Sequence[TrialResult]
) -> Mapping[int, str]:
    """Returns the running trials that are to be stopped now.

    Args:
        spec: the search.
        options: the search's options: the rule, and after how many measurements it begins.
        trials: all trials of the search, and those of resumed searches, in the order of their creation.

    Returns:
        The reasons, each a sentence without a full stop, by the trials' numbers. Empty if the search does not stop
        trials early.
    """
    if not spec.enable_trial_early_stopping:
        return {}
    rule = _asha_reason if options.early_stopping is EarlyStopping.ASHA else _median_reason
    reasons = {
        trial.number: rule(trial, goal=spec.goal, options=options, trials=trials)
        for trial in trials
        if trial.state is TrialState.RUNNING and len(trial.measurements) >= options.min_measurements
    }
    return {number: reason for number, reason in reasons.items() if reason is not None}


def _median_reason(
    trial: TrialResult, *, goal: Goal, options: TuningOptions, trials: Sequence[TrialResult]
) -> str | None:
    """Applies the median rule of Google Vizier to one trial.

    The trial stops at step s if its best value up to s is strictly worse than the median, over completed trials, of the
    mean of a trial's values up to s.
    """
    step = trial.measurements[-1].step
    completed = [other for other in trials if other.state is TrialState.COMPLETED]
    means = [fmean(values) for other in completed if (values := _finite(_until(other, step)))]
    if len(means) < MIN_COMPLETED_TRIALS:
        return None
    limit = median(means)
    values = _finite(trial.measurements)
    if not values:
        return f"no finite value up to step {step}; the median of {len(means)} completed trials is {limit:.6g}"
    best = max(values) if goal is Goal.MAXIMIZE else min(values)
    if not is_better(goal, value=limit, other=best):
        return None
    return f"its best value up to step {step}, {best:.6g}, is worse than the median of {len(means)} trials, {limit:.6g}"


def _asha_reason(
    trial: TrialResult, *, goal: Goal, options: TuningOptions, trials: Sequence[TrialResult]
) -> str | None:
    """Applies ASHA to one trial.

    Rung k is reached with measurement number ``min_measurements * reduction_factor**k``. A trial continues from there
    if its value is among the best ``1 / reduction_factor`` of the trials that had reached the rung by then; of fewer
    trials than the factor, if it is the best. So a rung is decided once, and trials that reach it later change nothing.
    """
    rung = options.min_measurements
    while rung <= len(trial.measurements):
        value, time_s = trial.measurements[rung - 1].value, trial.measurements[rung - 1].time_s
        others = [other.measurements[rung - 1] for other in trials if len(other.measurements) >= rung]
        reached = [other.value for other in others if other.time_s <= time_s]
        num_kept = max(len(reached) // options.reduction_factor, 1)
        num_better = sum(_beats(goal, value=one, other=value) for one in reached)
        if num_better >= num_kept or not math.isfinite(value):
            place = f"number {num_better + 1} of {len(reached)}" if math.isfinite(value) else "not finite"
            return f"after {rung} measurements its value, {value:.6g}, is {place}, and {num_kept} may continue"
        rung *= options.reduction_factor
    return None


def _beats(goal: Goal, *, value: float, other: float) -> bool:
    return math.isfinite(value) and (not math.isfinite(other) or is_better(goal, value=value, other=other))


def _until(trial: TrialResult, step: int) -> Sequence[Measurement]:
    return [one for one in trial.measurements if one.step <= step]


def _finite(measurements: Sequence[Measurement]) -> list[float]:
    return [one.value for one in measurements if math.isfinite(one.value)]
