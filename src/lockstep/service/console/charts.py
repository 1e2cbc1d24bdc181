"""Line charts as SVG, over time or over steps. The numbers are in a table below, for those who cannot see them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, final

import htpy as h

WIDTH: Final = 480
HEIGHT: Final = 150
LEFT: Final = 56
RIGHT: Final = 8
TOP: Final = 8
BOTTOM: Final = 22
NUM_COLORS: Final = 8
MAX_LINES: Final = 16
"""The most lines of one chart. Beyond, they cannot be told apart."""
MAX_VALUE: Final = 1e300
"""Larger values are left out: their differences would not be numbers."""
NUM_TICKS: Final = 4
"""About how many intervals an axis is divided into."""

svg, path, line, text, title, g = (h.Element(name) for name in ("svg", "path", "line", "text", "title", "g"))


@final
class Across(StrEnum):
    """What a chart's lines run over."""

    TIME = "time"
    """Seconds since 1970 UTC. Values begin at 0."""
    STEPS = "steps"
    """Numbers of steps. Values begin where the lines do, so that small changes are seen."""


@final
@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of a chart.

    Attributes:
        name: what it shows.
        points: pairs of a time in seconds since 1970 UTC, or of a step, and a value. A line has a gap where its value
            is None, or too large.
    """

    name: str
    points: Sequence[Sequence[float | None]]

    @property
    def numbers(self) -> list[tuple[float, float]]:
        """The points that have a value."""
        return [(x, y) for x, y in self.points if x is not None and y is not None and abs(y) < MAX_VALUE]


@final
@dataclass(frozen=True, kw_only=True)
class _Frame:
    """The values at the edges of a chart."""

    left: float
    right: float
    low: float
    top: float

    def x(self, value: float) -> float:
        across = 0.0 if self.right == self.left else (value - self.left) / (self.right - self.left)
        return LEFT + across * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        up = 0.0 if self.top == self.low else (value - self.low) / (self.top - self.low)
        return HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)


def chart(name: str, *, unit: str, lines: Sequence[Line], across: Across = Across.TIME) -> h.Element:
    """Returns a chart with its legend.

    Args:
        name: what it shows.
        unit: the unit of the values.
        lines: the lines.
        across: what the lines run over.
    """
    with_values = [each for each in lines if each.numbers]
    shown = with_values[:MAX_LINES]
    over = h.span(".muted")[" over steps"] if across is Across.STEPS else None
    caption = h.figcaption[h.strong[name], f" {unit}" if unit else "", over]
    if not shown:
        return h.figure(".chart")[caption, h.p(".muted")["No values yet."]]
    frame, levels = _frame([point for each in shown for point in each.numbers], across=across)
    drawn = svg(
        viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=f"{name}: {latest(shown, unit=unit)}", class_="plot"
    )[
        (_level(frame, value, label) for value, label in levels),
        _times(frame) if across is Across.TIME else _steps(frame),
        (
            path(d=_path(frame, each), class_=f"line c{index % NUM_COLORS}{_dashes(index)}")[title[each.name]]
            for index, each in enumerate(shown)
        ),
    ]
    legend = h.ul(".legend")[
        (
            h.li(class_=f"c{index % NUM_COLORS}{_dashes(index)}")[f"{each.name}: {number(each.numbers[-1][1])}"]
            for index, each in enumerate(shown)
        )
    ]
    more = len(with_values) - len(shown)
    return h.figure(".chart")[caption, drawn, legend, h.p(".muted")[f"and {more} more"] if more > 0 else None]


def _dashes(index: int) -> str:
    """Returns the class that distinguishes a line from another one of its color."""
    return "" if index < NUM_COLORS else " dashed"


def _frame(points: Sequence[tuple[float, float]], *, across: Across) -> tuple[_Frame, list[tuple[float, str]]]:
    """Returns the edges of a chart, and the levels that are drawn in it, with their labels."""
    first, last = min(x for x, _ in points), max(x for x, _ in points)
    lowest, highest = min(y for _, y in points), max(y for _, y in points)
    if across is Across.TIME:
        low, top = min(0.0, lowest), nice_ceiling(highest)
        levels = [(value, number(value)) for value in (low + (top - low) * part for part in (0.0, 0.5, 1.0))]
    else:
        levels = ticks(lowest, highest, is_around=True)
        low, top = levels[0][0], levels[-1][0]
    return _Frame(left=first, right=last, low=low, top=top), levels


def _path(frame: _Frame, each: Line) -> str:
    """Returns the line as SVG writes it. A single point is drawn as a dot, which needs a length of 0."""
    parts: list[str] = []
    is_new = True
    for x, y in each.points:
        if x is None or y is None or abs(y) >= MAX_VALUE:
            is_new = True
            continue
        parts.append(f"{'M' if is_new else 'L'}{frame.x(x):.1f},{frame.y(y):.1f}{'h0' if is_new else ''}")
        is_new = False
    return " ".join(parts)


def _level(frame: _Frame, value: float, label: str) -> h.Node:
    y = f"{frame.y(value):.1f}"
    return [
        line(x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"),
        text(x=LEFT - 6, y=y, dy="0.32em", class_="tick end")[label],
    ]


def _times(frame: _Frame) -> h.Node:
    return [
        text(x=LEFT, y=HEIGHT - 6, class_="tick")[_clock(frame.left)],
        text(x=WIDTH - RIGHT, y=HEIGHT - 6, class_="tick end")[_clock(frame.right)],
    ]


def _steps(frame: _Frame) -> h.Node:
    inside = [(value, label) for value, label in ticks(frame.left, frame.right) if frame.left <= value <= frame.right]
    return [
        [
            line(x1=f"{frame.x(value):.1f}", x2=f"{frame.x(value):.1f}", y1=TOP, y2=HEIGHT - BOTTOM, class_="grid"),
            text(
                x=f"{frame.x(value):.1f}",
                y=HEIGHT - 6,
                class_="tick end" if frame.x(value) > WIDTH - RIGHT - 20 else "tick middle",
            )[label],
        ]
        for value, label in inside
    ]


def ticks(low: float, high: float, *, is_around: bool = False) -> list[tuple[float, str]]:
    """Returns round values in a range, with labels that tell them apart.

    Args:
        low: the lower end of the range.
        high: the upper end of the range.
        is_around: whether the first and the last value enclose the range. Otherwise all are within it.
    """
    if high <= low:
        if not is_around:
            return [(low, number(low))]
        low, high = (low - abs(low) / 2, low + abs(low) / 2) if low else (0.0, 1.0)
    rough = max((high - low) / NUM_TICKS, abs(high) * 1e-12, 1e-300)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(each * power for each in (1, 2, 2.5, 5, 10) if each * power >= rough * 0.999)
    first, last = (
        (math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9))
        if is_around
        else (math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9))
    )
    largest = max(abs(first), abs(last), 1)
    multiple = round(step / power, 1)
    digits = len(str(int(largest * multiple))) + (1 if multiple == 2.5 else 0)  # enough to tell neighbors apart
    return [(position * step, number(position * step, digits=max(3, digits))) for position in range(first, last + 1)]


def latest(lines: Sequence[Line], *, unit: str) -> str:
    """Returns the last value of each line as text."""
    return ", ".join(f"{each.name} {number(each.numbers[-1][1])} {unit}".strip() for each in lines)


def nice_ceiling(value: float) -> float:
    """Returns the smallest of 1, 2, 2.5, 5 and 10 times a power of ten that is not below a value."""
    if value <= 0:
        return 1.0
    power = 10.0 ** max(-300, math.floor(math.log10(value)))
    return next(step * power for step in (1, 2, 2.5, 5, 10, 20) if step * power >= value * 0.999999999)


def number(value: float, *, digits: int = 3) -> str:
    """Returns a number with some digits that count, and with k, M, G or T if it is large."""
    for factor, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.{digits}g} {suffix}"
    return f"{value:.{digits}g}"


def _clock(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, tz=UTC).strftime("%H:%M:%S")
