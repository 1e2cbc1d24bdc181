"""Line charts as SVG. The numbers are in a table below, for those who cannot see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
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

svg, path, line, text, title, g = (h.Element(name) for name in ("svg", "path", "line", "text", "title", "g"))


@final
@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of a chart.

    Attributes:
        name: what it shows.
        points: pairs of a time, in seconds since 1970 UTC, and a value.
    """

    name: str
    points: Sequence[Sequence[float]]


def chart(name: str, *, unit: str, lines: Sequence[Line]) -> h.Element:
    """Returns a chart with its legend.

    Args:
        name: what it shows.
        unit: the unit of the values.
        lines: the lines.
    """
    shown = [each for each in lines[:MAX_LINES] if each.points]
    times = [point[0] for each in shown for point in each.points]
    values = [point[1] for each in shown for point in each.points]
    caption = h.figcaption[h.strong[name], f" {unit}" if unit else ""]
    if not values:
        return h.figure(".chart")[caption, h.p(".muted")["No values yet."]]
    first_s, last_s = min(times), max(times)
    top = nice_ceiling(max(values))
    low = min(0.0, min(values))

    def place(point: Sequence[float]) -> str:
        across = 0.0 if last_s == first_s else (point[0] - first_s) / (last_s - first_s)
        up = 0.0 if top == low else (point[1] - low) / (top - low)
        return f"{LEFT + across * (WIDTH - LEFT - RIGHT):.1f},{HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM):.1f}"

    drawn = svg(
        viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=f"{name}: {latest(shown, unit=unit)}", class_="plot"
    )[
        (_level(low + (top - low) * part, low=low, top=top) for part in (0.0, 0.5, 1.0)),
        text(x=LEFT, y=HEIGHT - 6, class_="tick")[_clock(first_s)],
        text(x=WIDTH - RIGHT, y=HEIGHT - 6, class_="tick end")[_clock(last_s)],
        (
            path(d="M" + " L".join(map(place, each.points)), class_=f"line c{index % NUM_COLORS}")[title[each.name]]
            for index, each in enumerate(shown)
        ),
    ]
    legend = h.ul(".legend")[
        (
            h.li(class_=f"c{index % NUM_COLORS}")[f"{each.name}: {number(each.points[-1][1])}"]
            for index, each in enumerate(shown)
        )
    ]
    more = len(lines) - len(shown)
    return h.figure(".chart")[caption, drawn, legend, h.p(".muted")[f"and {more} more"] if more > 0 else None]


def _level(value: float, *, low: float, top: float) -> h.Node:
    up = 0.0 if top == low else (value - low) / (top - low)
    y = f"{HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM):.1f}"
    return [
        line(x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"),
        text(x=LEFT - 6, y=y, dy="0.32em", class_="tick end")[number(value)],
    ]


def latest(lines: Sequence[Line], *, unit: str) -> str:
    """Returns the last value of each line as text."""
    return ", ".join(f"{each.name} {number(each.points[-1][1])} {unit}".strip() for each in lines)


def nice_ceiling(value: float) -> float:
    """Returns the smallest of 1, 2, 2.5, 5 and 10 times a power of ten that is not below a value."""
    if value <= 0:
        return 1.0
    power = 10.0 ** (len(f"{int(value)}") - 1) if value >= 1 else 10.0 ** -len(str(int(1 / value)))
    return next(step * power for step in (1, 2, 2.5, 5, 10, 20) if step * power >= value)


def number(value: float) -> str:
    """Returns a number with three digits that count, and with k, M, G or T if it is large."""
    for factor, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {suffix}"
    return f"{value:.3g}"


def _clock(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, tz=UTC).strftime("%H:%M:%S")
