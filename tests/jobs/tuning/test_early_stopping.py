"""Which trials of a search are stopped early."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import optuna
import pytest

from lockstep.jobs.input.hyperparameters import EarlyStopping, Goal, HyperparameterSpec, TuningOptions
from lockstep.jobs.tuning import Measurement, TrialResult, TrialState, find_stoppable


def search(goal: Goal = Goal.MAXIMIZE, *, stops: bool = True) -> HyperparameterSpec:
    param = {"parameterName": "x", "type": "DOUBLE", "minValue": 0, "maxValue": 1}
    return HyperparameterSpec.model_validate({"params": [param], "goal": goal, "enableTrialEarlyStopping": stops})


def trial(number: int, values: Sequence[float], state: TrialState = TrialState.COMPLETED, step: int = 1) -> TrialResult:
    curve = tuple(
        Measurement(step=place * step, value=value, time_s=100.0 * number + place) for place, value in enumerate(values)
    )
    return TrialResult(number=number, parameters={"x": 0.5}, state=state, measurements=curve)


def stopped(trials: Sequence[TrialResult], *, goal: Goal = Goal.MAXIMIZE, **options: Any) -> set[int]:
    return set(find_stoppable(search(goal), options=TuningOptions(**options), trials=trials))


RUNNING = TrialState.RUNNING
COMPLETED = [trial(number, [number / 10] * 4) for number in range(1, 6)]
"""Five trials with the means 0.1 to 0.5: their median is 0.3."""


def test_the_median_rule_compares_the_best_value_with_the_median_of_means() -> None:
    assert stopped([*COMPLETED, trial(6, [0.2, 0.29], RUNNING), trial(7, [0.31, 0.0], RUNNING)]) == {6}
    assert stopped([*COMPLETED, trial(6, [0.3], RUNNING)]) == set(), "equal is not worse"
    assert stopped([*COMPLETED, trial(6, [0.2, 0.29], RUNNING)], goal=Goal.MINIMIZE) == set()
    assert stopped([*COMPLETED, trial(6, [0.9, 0.31], RUNNING)], goal=Goal.MINIMIZE) == {6}
    (reason,) = find_stoppable(
        search(), options=TuningOptions(), trials=[*COMPLETED, trial(6, [0.2, 0.29], RUNNING)]
    ).values()
    assert reason == "its best value up to step 1, 0.29, is worse than the median of 5 trials, 0.3"


def test_the_median_rule_looks_at_what_was_reported_up_to_the_same_step() -> None:
    rising = [trial(number, [0.1, 0.5, 0.9], step=10) for number in range(1, 6)]  # means 0.1, 0.3, 0.5
    assert stopped([*rising, trial(6, [0.2], RUNNING)]) == set()
    assert stopped([*rising, trial(6, [0.2, 0.2], RUNNING, step=10)]) == {6}
    # A trial with steps of its own is compared with the last ones up to its own.
    assert stopped([*rising, trial(6, [0.2, 0.25, 0.28], RUNNING, step=7)]) == {6}
    assert stopped([*rising, trial(6, [0.2, 0.25, 0.28], RUNNING, step=4)]) == set()


def test_nothing_is_stopped_too_early_or_unasked() -> None:
    bad = trial(9, [0.0], RUNNING)
    assert stopped([*COMPLETED, bad]) == {9}
    assert stopped([*COMPLETED[:4], bad]) == set(), "too few completed trials"
    assert stopped([*COMPLETED, bad], min_measurements=2) == set()
    assert stopped([*COMPLETED, trial(9, [], RUNNING)]) == set()
    assert find_stoppable(search(stops=False), options=TuningOptions(), trials=[*COMPLETED, bad]) == {}
    ended = [trial(9, [0.0], state) for state in TrialState if state is not RUNNING]
    assert stopped([*COMPLETED, *ended]) == set()


@pytest.mark.parametrize("rule", list(EarlyStopping))
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_worse_than_all_others(rule: EarlyStopping, value: float) -> None:
    broken = [*COMPLETED, trial(6, [value], RUNNING)]
    assert stopped(broken, early_stopping=rule) == {6}
    assert stopped(broken, early_stopping=rule, goal=Goal.MINIMIZE) == {6}
    # Broken values of others do not hide good ones.
    fine = [*COMPLETED, trial(6, [value]), trial(7, [0.9], RUNNING)]
    assert stopped(fine, early_stopping=rule) == set()


def test_asha_keeps_one_of_a_factor_on_each_rung() -> None:
    curves = [[0.1, 0.2, 0.3], [0.5, 0.1, 0.1], [0.4, 0.6, 0.6], [0.6, 0.1, 0.1]]
    trials = [trial(number, curve, RUNNING) for number, curve in enumerate(curves, 1)]
    # On the first rung: 1 is alone; 2 beats it; 3 is worse than 2; of four, two continue (factor 2): 4 and 2.
    found = find_stoppable(
        search(), options=TuningOptions(early_stopping=EarlyStopping.ASHA, reduction_factor=2), trials=trials
    )
    assert found[3] == "after 1 measurements its value, 0.4, is number 2 of 3, and 1 may continue"
    # On the second one: 2 is worse than 1.
    assert found[2].startswith("after 2 measurements")
    assert 1 not in found, "who passed a rung is not judged again there"


@pytest.mark.parametrize("goal", list(Goal))
def test_asha_decides_as_optuna_does(goal: Goal) -> None:
    """Both get the same trials one after another; Optuna decides while a trial reports, and here it is asked for."""
    generator = random.Random(3)
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=2, reduction_factor=3)
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction=str(goal).lower(), pruner=pruner)
    optuna.logging.set_verbosity(before)
    options = TuningOptions(early_stopping=EarlyStopping.ASHA, min_measurements=2, reduction_factor=3)
    trials: list[TrialResult] = []
    num_pruned = 0
    for number in range(1, 61):
        asked, level, values = study.ask(), generator.random(), list[float]()
        for step in range(1, 21):
            values.append(level + 0.2 * generator.random())
            asked.report(values[-1], step)
            is_pruned = asked.should_prune()
            running = trial(number, values, RUNNING)
            assert (
                number
                in stopped(
                    [*trials, running],
                    goal=goal,
                    early_stopping=EarlyStopping.ASHA,
                    min_measurements=options.min_measurements,
                    reduction_factor=options.reduction_factor,
                )
            ) == is_pruned
            if is_pruned:
                break
        state = optuna.trial.TrialState.PRUNED if is_pruned else optuna.trial.TrialState.COMPLETE
        study.tell(asked, None if is_pruned else values[-1], state=state)
        trials.append(trial(number, values, TrialState.STOPPED if is_pruned else TrialState.COMPLETED))
        num_pruned += is_pruned
    assert 20 < num_pruned < 60
