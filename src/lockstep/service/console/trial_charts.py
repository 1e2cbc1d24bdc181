"""Plots of a hyperparameter search as SVG: the objective of each trial, and how it depends on the parameters.

They follow `plot_optimization_history` and `plot_parallel_coordinate` of Optuna. The numbers are in the table of
trials, for those who cannot see the plots.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

import htpy as h

from lockstep.service.console.charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    line,
    number,
    path,
    svg,
    text,
    ticks,
    title,
)

MAX_AXES: Final = 12
"""The most parameters of one plot. Beyond, the labels cannot be read."""
MAX_LABELS: Final = 8
"""The most values of an axis that have labels."""
WIDE: Final = 960
TALL: Final = 260
LABELS: Final = 34
"""The height of the names above the axes."""
MAX_IN_A_ROW: Final = 7
"""The most axes whose names stand in one row."""
LEAST_OPACITY: Final = 0.15
MAX_LABEL: Final = 16
"""How many characters of a label are shown."""


@final
@dataclass(frozen=True, kw_only=True)
class Trial:
    """A trial that has a value.

    Attributes:
        number: its number.
        parameters: the values of its parameters, by name.
        objective: the value of its metric.
    """

    number: int
    parameters: Mapping[str, str]
    objective: float


def history(trials: Sequence[Trial], *, metric: str, maximizes: bool) -> h.Element:
    """Returns the objective of each trial as a dot, and the best one so far as a line.

    Args:
        trials: the trials that have a value, one or more.
        metric: the name of the metric.
        maximizes: whether a larger value is better.
    """
    by_number = sorted(trials, key=lambda trial: trial.number)
    levels = ticks(min(t.objective for t in trials), max(t.objective for t in trials), is_around=True)
    low, top = levels[0][0], levels[-1][0]
    last = max(by_number[-1].number, 2)

    def x(place: float) -> float:
        return LEFT + 6 + (place - 1) / (last - 1) * (WIDTH - LEFT - RIGHT - 12)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (value - low) / (top - low) * (HEIGHT - TOP - BOTTOM)

    best, steps = by_number[0], [f"M{x(by_number[0].number):.1f},{y(by_number[0].objective):.1f}"]
    for trial in by_number[1:]:
        if _is_better(trial, best, maximizes=maximizes):
            best = trial
        steps.append(f"H{x(trial.number):.1f}V{y(best.objective):.1f}")
    places = [(value, label) for value, label in ticks(1, last) if value == int(value)]
    name = f"{metric}, trial by trial"
    drawn = svg(
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=f"{name}: the best is {number(best.objective, digits=6)}, of trial {best.number}",
        class_="plot",
    )[
        (_level(y(value), label) for value, label in levels),
        (text(x=f"{x(value):.1f}", y=HEIGHT - 6, class_="tick middle")[label] for value, label in places),
        path(d="".join(steps), class_="line c1"),
        (
            path(d=f"M{x(t.number):.1f},{y(t.objective):.1f}h0", class_="line dot c0")[
                title[f"trial {t.number}: {number(t.objective, digits=6)}"]
            ]
            for t in by_number
        ),
    ]
    legend = h.ul(".legend")[h.li(".c0")["objective"], h.li(".c1")[f"best so far: {number(best.objective, digits=6)}"]]
    return h.figure(".chart")[h.figcaption[h.strong[name]], drawn, legend]


def parallel_coordinates(
    trials: Sequence[Trial], *, parameters: Sequence[str], logarithmic: frozenset[str], metric: str, maximizes: bool
) -> h.Element:
    """Returns a line for each trial, across an axis for the objective and one for each parameter.

    The best trials stand out.

    Args:
        trials: the trials that have a value, one or more.
        parameters: the names of the parameters, in their order.
        logarithmic: the parameters whose axes are logarithmic.
        metric: the name of the metric.
        maximizes: whether a larger value is better.
    """
    shown = list(parameters[:MAX_AXES])
    axes = [
        _axis([repr(trial.objective) for trial in trials], is_logarithmic=False),
        *(
            _axis([trial.parameters.get(name, "") for trial in trials], is_logarithmic=name in logarithmic)
            for name in shown
        ),
    ]
    worst_first = sorted(trials, key=lambda trial: trial.objective, reverse=not maximizes)
    best = worst_first[-1]
    named = ", ".join(f"{name} {best.parameters.get(name, '-')}" for name in shown)
    drawn = svg(
        viewBox=f"0 0 {WIDE} {TALL}",
        role="img",
        aria_label=f"the parameters of {len(trials)} trials; the best, trial {best.number}: {named}",
        class_="plot",
    )[
        (
            line(x1=f"{x:.1f}", x2=f"{x:.1f}", y1=f"{_up(0):.1f}", y2=f"{_up(1):.1f}", class_="grid")
            for x in _across(len(axes))
        ),
        (
            _trial_line(trial, axes, shown, color="c1" if trial is best else "c0", strength=(rank + 1) / len(trials))
            for rank, trial in enumerate(worst_first)
        ),
        _axis_labels(axes, names=[metric, *shown]),  # above the lines, so that they can be read
    ]
    more = len(parameters) - len(shown)
    return h.figure(".chart.wide-plot")[
        h.figcaption[h.strong["Parameters"], h.span(".muted")[" the better a trial, the stronger its line"]],
        drawn,
        h.ul(".legend")[h.li(".c1")[f"best: trial {best.number}"], h.li(".c0")["other trials"]],
        h.p(".muted")[f"and {more} more parameters"] if more > 0 else None,
    ]


@final
@dataclass(frozen=True, kw_only=True)
class _Axis:
    """An axis of a plot of parallel coordinates.

    Attributes:
        places: where each value stands, from 0 at the bottom to 1.
        labels: the places and texts of its labels.
    """

    places: Mapping[str, float]
    labels: Sequence[tuple[float, str]]


def _across(num_axes: int) -> list[float]:
    """Returns where the axes stand."""
    return [LEFT + index / max(1, num_axes - 1) * (WIDE - 2 * LEFT) for index in range(num_axes)]


def _up(part: float) -> float:
    return TALL - TOP - part * (TALL - TOP - LABELS)


def _trial_line(
    trial: Trial, axes: Sequence[_Axis], parameters: Sequence[str], *, color: str, strength: float
) -> h.Element:
    places = zip(_across(len(axes)), axes, _values(trial, parameters), strict=True)
    points = [f"{x:.1f},{_up(axis.places[value]):.1f}" for x, axis, value in places]
    opacity = LEAST_OPACITY + (1 - LEAST_OPACITY) * strength**2
    drawn = path(d="M" + "L".join(points), class_=f"line {color}", stroke_opacity=f"{opacity:.2f}")
    return drawn[title[f"trial {trial.number}: {number(trial.objective, digits=6)}"]]


def _axis_labels(axes: Sequence[_Axis], *, names: Sequence[str]) -> h.Node:
    """Returns the names and values of axes. With many axes, every second name stands lower."""
    is_crowded = len(axes) > MAX_IN_A_ROW
    return [
        [
            text(x=f"{x:.1f}", y=26 if is_crowded and index % 2 else 12, class_="tick middle")[
                _cut(names[index]), title[names[index]]
            ],
            [
                text(x=f"{x - 5:.1f}", y=f"{_up(part):.1f}", dy="0.32em", class_="tick end halo")[_cut(label)]
                for part, label in axis.labels
            ],
        ]
        for index, (x, axis) in enumerate(zip(_across(len(axes)), axes, strict=True))
    ]


def _axis(values: Sequence[str], *, is_logarithmic: bool) -> _Axis:
    numbers = {value: found for value in values if (found := _number(value)) is not None}
    if len(numbers) < len(set(values)):  # words: each has a place of its own
        words = sorted(set(values))
        places = {word: index / max(1, len(words) - 1) for index, word in enumerate(words)}
        return _Axis(places=places, labels=[(places[word], word) for word in words[:MAX_LABELS]])
    is_logarithmic = is_logarithmic and min(numbers.values()) > 0
    scaled = {value: math.log10(found) if is_logarithmic else found for value, found in numbers.items()}
    low, high = min(scaled.values()), max(scaled.values())
    if high <= low:
        return _Axis(places=dict.fromkeys(scaled, 0.5), labels=[(0.5, number(next(iter(numbers.values()))))])
    places = {value: (found - low) / (high - low) for value, found in scaled.items()}
    if len(places) <= MAX_LABELS // 2:
        levels = [(scaled[value], number(numbers[value])) for value in places]
    elif is_logarithmic:
        # A label at each power of ten, and at both ends.
        inner = [power for power in range(math.ceil(low), math.floor(high) + 1) if low + 0.15 < power < high - 0.15]
        levels = [(low, number(10**low)), *((power, f"1e{power}") for power in inner), (high, number(10**high))]
    else:
        levels = [(value, label) for value, label in ticks(low, high) if low <= value <= high]
    return _Axis(places=places, labels=[((value - low) / (high - low), label) for value, label in levels])


def _values(trial: Trial, parameters: Sequence[str]) -> list[str]:
    return [repr(trial.objective), *(trial.parameters.get(name, "") for name in parameters)]


def _number(value: str) -> float | None:
    try:
        found = float(value)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def _is_better(trial: Trial, other: Trial, *, maximizes: bool) -> bool:
    return trial.objective > other.objective if maximizes else trial.objective < other.objective


def _cut(label: str) -> str:
    return label if len(label) <= MAX_LABEL else f"{label[: MAX_LABEL - 1]}…"


def _level(y: float, label: str) -> h.Node:
    place = f"{y:.1f}"
    return [
        line(x1=LEFT, x2=WIDTH - RIGHT, y1=place, y2=place, class_="grid"),
        text(x=LEFT - 6, y=place, dy="0.32em", class_="tick end")[label],
    ]
