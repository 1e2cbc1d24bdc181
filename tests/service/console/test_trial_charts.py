"""The plots of a search: what they show of each trial."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from lockstep.service.console.trial_charts import Trial, history, parallel_coordinates


def trial(number: int, objective: float, **parameters: str) -> Trial:
    return Trial(number=number, parameters=parameters, objective=objective)


TRIALS = [
    trial(1, 0.5, rate="0.1", units="16", act="relu"),
    trial(2, 0.9, rate="0.001", units="64", act="gelu"),
    trial(4, 0.7, rate="0.00001", units="32", act="relu"),
]


def dots(drawn: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r'd="M([\d.]+),([\d.]+)h0"', drawn)]


def lines(drawn: str) -> dict[str, list[float]]:
    """Returns the heights of each trial's line, by the trial."""
    found = re.findall(r'<path d="(M[^"]+)"[^>]*><title>(trial \d+)', drawn)
    return {name: [float(y) for _, y in re.findall(r"([\d.]+),([\d.]+)", d)] for d, name in found}


def test_the_history_has_a_dot_for_each_trial_and_names_the_best():
    drawn = str(history(TRIALS, metric="accuracy", maximizes=True))
    places = dots(drawn)
    assert [x for x, _ in places] == sorted(x for x, _ in places)
    assert min(places, key=lambda place: place[1]) == places[1], "the largest value stands highest"
    assert "the best is 0.9, of trial 2" in drawn
    assert "the best is 0.5, of trial 1" in str(history(TRIALS, metric="loss", maximizes=False))


@pytest.mark.parametrize("objectives", [[0.5], [2.0, 2.0], [-1e300, 1e300], [0.0, 0.0, 0.0]])
def test_few_equal_and_extreme_values_are_drawn(objectives: Sequence[float]):
    trials = [trial(number, value, rate="1") for number, value in enumerate(objectives, start=1)]
    drawn = str(history(trials, metric="m", maximizes=False))
    assert len(dots(drawn)) == len(trials)
    crossed = lines(
        str(parallel_coordinates(trials, parameters=["rate"], logarithmic=frozenset(), metric="m", maximizes=False))
    )
    assert len(crossed) == len(trials)
    assert "nan" not in drawn


def test_each_trial_crosses_each_axis_where_its_value_stands():
    drawn = str(
        parallel_coordinates(
            TRIALS,
            parameters=["rate", "units", "act"],
            logarithmic=frozenset({"rate"}),
            metric="accuracy",
            maximizes=True,
        )
    )
    crossed = lines(drawn)
    top, bottom = crossed["trial 2"][0], crossed["trial 1"][0]
    assert top < crossed["trial 4"][0] < bottom
    first, second, third = (crossed[f"trial {number}"][1] for number in (1, 2, 4))
    assert second == pytest.approx((first + third) / 2, abs=0.2), "halfway between powers of ten"
    assert crossed["trial 1"][3] == crossed["trial 4"][3] != crossed["trial 2"][3], "words have places of their own"
    assert "the best, trial 2: rate 0.001, units 64, act gelu" in drawn
    strengths = {float(value) for value in re.findall(r'stroke-opacity="([\d.]+)"', drawn)}
    assert len(strengths) == len(TRIALS)
    assert "c1" in re.findall(r'class="line (c\d)"[^>]*><title>trial 2', drawn)


def test_what_programs_name_is_text():
    hostile = trial(1, 1.0, **{"<script>": "<b>"})
    drawn = str(
        parallel_coordinates(
            [hostile], parameters=["<script>"], logarithmic=frozenset({"<script>"}), metric="<i>", maximizes=True
        )
    ) + str(history([hostile], metric="<i>", maximizes=True))
    assert "<script>" not in drawn
    assert "<i>" not in drawn
    assert "<b>" not in drawn


def test_more_parameters_than_axes_are_counted():
    names = [f"p{number}" for number in range(15)]
    many = trial(1, 1.0, **dict.fromkeys(names, "1"))
    drawn = str(parallel_coordinates([many], parameters=names, logarithmic=frozenset(), metric="m", maximizes=True))
    assert "and 3 more parameters" in drawn
