"""Which parameters the next trial of a search gets."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.jobs.input.hyperparameters import Goal, HyperparameterSpec
from lockstep.jobs.tuning import (
    Measurement,
    TrialResult,
    TrialState,
    Value,
    arguments_of,
    best_first,
    num_trials,
    propose,
)
from lockstep.jobs.tuning.space import contains, num_points, point


def search(*params: Mapping[str, Any], **options: Any) -> HyperparameterSpec:
    return HyperparameterSpec.model_validate({"params": list(params), "maxTrials": 100, **options})


def double(name: str, low: float, high: float, scale: str = "NONE") -> dict[str, Any]:
    return {"parameterName": name, "type": "DOUBLE", "minValue": low, "maxValue": high, "scaleType": scale}


def integer(name: str, low: int, high: int, scale: str = "NONE") -> dict[str, Any]:
    return double(name, low, high, scale) | {"type": "INTEGER"}


def categorical(name: str, *values: str) -> dict[str, Any]:
    return {"parameterName": name, "type": "CATEGORICAL", "categoricalValues": list(values)}


def discrete(name: str, *values: float) -> dict[str, Any]:
    return {"parameterName": name, "type": "DISCRETE", "discreteValues": list(values)}


def trial(
    number: int,
    parameters: Mapping[str, Value],
    value: float | None = None,
    state: TrialState = TrialState.COMPLETED,
) -> TrialResult:
    curve = () if value is None else (Measurement(step=0, value=value, time_s=float(number)),)
    return TrialResult(number=number, parameters=parameters, state=state, measurements=curve)


def run(
    spec: HyperparameterSpec, objective: Callable[[Mapping[str, Any]], float], *, seed: int, num: int
) -> list[TrialResult]:
    """Runs trials one after another, until their number or the end of the space."""
    trials: list[TrialResult] = []
    while len(trials) < num:
        parameters = propose(spec, trials=trials, seed=seed)
        if parameters is None:
            break
        trials.append(trial(len(trials) + 1, parameters, objective(parameters)))
    return trials


SCALES = st.sampled_from(["NONE", "UNIT_LINEAR_SCALE", "UNIT_LOG_SCALE", "UNIT_REVERSE_LOG_SCALE"])


@st.composite
def parameters(draw: st.DrawFn, name: str) -> dict[str, Any]:
    kind, scale = draw(st.sampled_from(["DOUBLE", "INTEGER", "CATEGORICAL", "DISCRETE"])), draw(SCALES)
    positive = "LOG" in scale
    if kind == "CATEGORICAL":
        return categorical(name, *draw(st.lists(st.text(max_size=5), min_size=1, max_size=5, unique=True)))
    if kind == "DISCRETE":
        numbers = st.floats(1e-300 if positive else -1e9, 1e9)
        values = sorted(draw(st.lists(numbers, min_size=1, max_size=6, unique=True)))
        return discrete(name, *values) | {"scaleType": scale}
    if kind == "INTEGER":
        whole = st.integers(1 if positive else -(2**40), 2**40)
        low, high = sorted((draw(whole), draw(whole | whole.map(lambda n: n % 10 + 1))))
        return integer(name, low, high, scale)
    real = st.floats(1e-12 if positive else -1e12, 1e12, allow_subnormal=False)
    low, high = sorted((draw(real), draw(real)))
    return double(name, low, high, scale)


@st.composite
def searches(draw: st.DrawFn) -> HyperparameterSpec:
    params = [draw(parameters(f"p{index}")) for index in range(draw(st.integers(1, 3)))]
    has_range = any(param["type"] == "DOUBLE" for param in params)
    algorithms = ["ALGORITHM_UNSPECIFIED", "RANDOM_SEARCH", *([] if has_range else ["GRID_SEARCH"])]
    return search(*params, algorithm=draw(st.sampled_from(algorithms)), goal=draw(st.sampled_from(list(Goal))))


ENDS = st.sampled_from(list(TrialState))
OBJECTIVES = st.none() | st.floats()


@settings(deadline=None, max_examples=60)
@given(spec=searches(), seed=st.integers(0, 2**31), ends=st.lists(st.tuples(ENDS, OBJECTIVES), max_size=16))
def test_every_proposal_is_a_new_point_of_the_space(
    spec: HyperparameterSpec, seed: int, ends: Sequence[tuple[TrialState, float | None]]
) -> None:
    trials: list[TrialResult] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for state, value in [*ends, (TrialState.RUNNING, None)]:
            proposed = propose(spec, trials=trials, seed=seed)
            assert proposed == propose(spec, trials=trials, seed=seed), "it depends on its arguments only"
            seen = [one.parameters for one in trials if one.state is not TrialState.LOST]
            if proposed is None:
                assert len(seen) == num_points(spec)
                return
            assert contains(spec, parameters=proposed)
            assert list(proposed) == [param.parameter_name for param in spec.params]
            assert num_points(spec) is None or proposed not in seen
            trials.append(trial(len(trials) + 1, proposed, value, state))


def test_points_outside_of_the_space_are_not_in_it() -> None:
    spec = search(double("a", 0, 1), integer("b", 1, 3), categorical("c", "x"), discrete("d", 0.5, 2))
    inside: dict[str, Value] = {"a": 0.5, "b": 2, "c": "x", "d": 2.0}
    assert contains(spec, parameters=inside)
    wrong: list[dict[str, Value]] = [{"a": 1.5}, {"a": "x"}, {"b": 2.5}, {"b": 4}, {"c": "y"}, {"d": 1.0}, {"e": 1}]
    assert not any(contains(spec, parameters=inside | part) for part in wrong)
    assert not contains(spec, parameters={"a": 0.5})


def test_a_grid_search_tries_each_point_once_in_order() -> None:
    spec = search(
        integer("layers", 1, 2), categorical("loss", "a", "b"), discrete("units", 16, 64), algorithm="GRID_SEARCH"
    )
    trials = run(spec, lambda _: 0.0, seed=0, num=100)
    assert [tuple(one.parameters.values()) for one in trials] == [
        (layers, loss, units) for layers in (1, 2) for loss in "ab" for units in (16, 64)
    ]
    assert num_trials(spec) == 8
    assert num_trials(search(integer("n", 1, 500), algorithm="GRID_SEARCH")) == 100
    # A grid whose points nobody could list is walked all the same.
    wide = search(integer("n", 1, 10**9), integer("m", 1, 10**9), algorithm="GRID_SEARCH")
    assert propose(wide, trials=[trial(1, {"n": 1, "m": 1}, 0.0)], seed=0) == {"n": 1, "m": 2}
    assert point(wide, index=10**18 - 1) == {"n": 10**9, "m": 10**9}


@pytest.mark.parametrize("algorithm", ["ALGORITHM_UNSPECIFIED", "RANDOM_SEARCH"])
def test_a_small_space_ends_a_search_when_all_is_tried(algorithm: str) -> None:
    spec = search(integer("n", 1, 3), categorical("c", "a", "b"), algorithm=algorithm)
    trials = run(spec, lambda one: one["n"], seed=1, num=100)
    assert len({tuple(one.parameters.values()) for one in trials}) == len(trials) == num_trials(spec) == 6


def test_a_lost_trial_is_proposed_again_and_then_no_more() -> None:
    spec = search(double("x", 0, 1))
    lost = trial(1, {"x": 0.25}, state=TrialState.LOST)
    again = propose(spec, trials=[lost], seed=0)
    assert again == {"x": 0.25}
    running = trial(2, again, state=TrialState.RUNNING)
    assert propose(spec, trials=[lost, running], seed=0) not in (None, again)


def test_seeds_and_trials_differ_and_the_time_of_a_search_does_not_matter() -> None:
    spec = search(double("x", 0, 1), algorithm="RANDOM_SEARCH")
    firsts = [propose(spec, trials=[], seed=seed) for seed in range(20)]
    assert len({one["x"] for one in firsts if one}) == 20
    one, other = (run(spec, objective, seed=7, num=20) for objective in (lambda p: p["x"], lambda p: -p["x"]))
    assert [t.parameters for t in one] == [t.parameters for t in other], "random search looks at no results"


def spread(scale: str, *, kind: Callable[..., dict[str, Any]] = double) -> list[float]:
    # With a second parameter, so that a value may occur more than once.
    spec = search(kind("x", 1, 10_000, scale), double("y", 0, 1), algorithm="RANDOM_SEARCH")
    return sorted(one.parameters["x"] for one in run(spec, lambda _: 0.0, seed=0, num=200))  # type: ignore[type-var]


@pytest.mark.parametrize("kind", [double, integer])
@pytest.mark.heavy
def test_scales_spread_values_as_the_contract_says(kind: Callable[..., dict[str, Any]]) -> None:
    linear, log, reverse = (
        [sum(value < limit for value in spread(f"UNIT_{scale}_SCALE", kind=kind)) / 200 for limit in limits]
        for scale, limits in (
            ("LINEAR", (2500, 5000, 7500)),
            ("LOG", (10, 100, 1000)),  # a quarter of the values in each decade
            ("REVERSE_LOG", (9001, 9901, 9991)),  # the same, counted from the top
        )
    )
    assert linear == pytest.approx([0.25, 0.5, 0.75], abs=0.08)
    assert log == pytest.approx([0.25, 0.5, 0.75], abs=0.08)
    assert reverse == pytest.approx([0.25, 0.5, 0.75], abs=0.08)
    assert spread("NONE", kind=kind) == spread("UNIT_LINEAR_SCALE", kind=kind)


def test_each_value_of_a_discrete_is_equally_likely() -> None:
    spec = search(discrete("x", 1, 10, 1000), double("y", 0, 1), algorithm="RANDOM_SEARCH")
    found = [one.parameters["x"] for one in run(spec, lambda _: 0.0, seed=0, num=300)]
    assert [found.count(value) / 300 for value in (1, 10, 1000)] == pytest.approx([1 / 3] * 3, abs=0.07)


@pytest.mark.parametrize("goal", list(Goal))
def test_proposals_follow_the_goal(goal: Goal) -> None:
    sign = 1 if goal is Goal.MAXIMIZE else -1
    spec = search(double("x", 0, 1), double("y", 0, 1), goal=goal)
    trials = run(spec, lambda one: -sign * ((one["x"] - 0.8) ** 2 + (one["y"] - 0.3) ** 2), seed=0, num=40)
    best = best_first(goal, trials=trials)[0].parameters
    assert list(best.values()) == pytest.approx([0.8, 0.3], abs=0.05)
    late = [one.parameters for one in trials[20:]]
    assert sum(float(one["x"]) > 0.6 and float(one["y"]) < 0.5 for one in late) >= 12, "of 20, at random 4"


def test_running_trials_keep_others_away() -> None:
    """With a constant liar, proposals made at once differ more than the model alone would have them."""
    spec = search(double("x", 0, 1))
    done = run(spec, lambda one: -((one["x"] - 0.5) ** 2), seed=0, num=25)
    batch = list(done)
    for _ in range(12):
        proposed = propose(spec, trials=batch, seed=0)
        assert proposed is not None
        batch.append(trial(len(batch) + 1, proposed, state=TrialState.RUNNING))
    places = [float(one.parameters["x"]) for one in batch[25:]]
    alone = []
    for seed in range(12):
        proposed = propose(spec, trials=done, seed=seed)
        assert proposed is not None
        alone.append(float(proposed["x"]))
    assert max(places) - min(places) > 1.5 * (max(alone) - min(alone))


def test_the_neighbours_of_failed_trials_are_avoided() -> None:
    spec = search(double("x", 0, 1))
    trials = []
    for number in range(1, 41):
        parameters = propose(spec, trials=trials, seed=5)
        assert parameters is not None
        x = float(parameters["x"])
        ended = trial(number, parameters, 0.5) if x < 0.7 else trial(number, parameters, math.nan, TrialState.FAILED)
        trials.append(ended)
    states = [one.state for one in trials]
    assert states[:15].count(TrialState.FAILED) >= 3
    assert states[15:].count(TrialState.FAILED) <= 2, "of 25, at random 7"
    assert best_first(Goal.MAXIMIZE, trials=trials)[-1].objective is None


def test_trials_of_an_earlier_search_count_even_if_the_space_has_changed() -> None:
    before = run(search(double("x", 0, 1)), lambda one: -((one["x"] - 0.9) ** 2), seed=0, num=30)
    narrow = search(double("x", 0.5, 1))
    first = propose(narrow, trials=before, seed=0)
    assert first is not None
    assert first["x"] == pytest.approx(0.9, abs=0.1), "it needs no random trials"
    other = search(double("y", 0, 1))
    assert propose(other, trials=before, seed=0) is not None


def test_arguments_are_read_back_exactly() -> None:
    assert arguments_of({"rate": 1e-05, "x": 0.1 + 0.2, "units": 64, "mode": "a b=c"}) == [
        "--rate=1e-05",
        "--x=0.30000000000000004",
        "--units=64",
        "--mode=a b=c",
    ]
    whole, half = search(discrete("u", 16, 64)), search(discrete("u", 0.5, 1))
    assert [point(whole, index=1), point(half, index=1)] == [{"u": 64}, {"u": 1.0}]
    assert arguments_of(point(whole, index=1)) == ["--u=64"]
    assert arguments_of(point(half, index=1)) == ["--u=1.0"]


def test_the_last_finite_value_is_the_objective() -> None:
    curve = tuple(Measurement(step=s, value=v, time_s=0) for s, v in enumerate([0.1, 0.3, 0.2, math.nan]))
    one = TrialResult(number=1, parameters={}, state=TrialState.COMPLETED, measurements=curve)
    assert one.final == curve[2]
    assert one.objective == 0.2
    assert trial(1, {}).objective is None
