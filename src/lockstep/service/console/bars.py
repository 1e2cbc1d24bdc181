"""Bars as SVG: one for each day, the shares of a whole, and how much of a limit is used. Tables have their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import htpy as h

from lockstep.service.console.charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    NUM_COLORS,
    RIGHT,
    TOP,
    WIDTH,
    line,
    nice_ceiling,
    number,
    svg,
    text,
    title,
)

MAX_BARS: Final = 100
"""The most bars of one chart: the last ones are drawn."""
GAP: Final = 0.25
"""The part of a bar's room that is left free."""
STRIP_WIDTH: Final = 400
STRIP_HEIGHT: Final = 14

rect = h.Element("rect")


@final
@dataclass(frozen=True, kw_only=True)
class Bar:
    """A bar of a chart.

    Attributes:
        name: what it is for, such as a day.
        value: its value, 0 or more.
    """

    name: str
    value: float


def bar_chart(name: str, *, unit: str, bars: Sequence[Bar]) -> h.Element:
    """Returns a chart with a bar for each value, in their order.

    Args:
        name: what it shows.
        unit: the unit of the values, which stands before them.
        bars: the bars; the last `MAX_BARS` are drawn.
    """
    shown = bars[-MAX_BARS:]
    caption = h.figcaption[h.strong[name], f" {unit}" if unit else ""]
    if not shown:
        return h.figure(".chart")[caption, h.p(".muted")["No values yet."]]
    top = nice_ceiling(max(bar.value for bar in shown))
    room = (WIDTH - LEFT - RIGHT) / len(shown)

    def draw(position: int, bar: Bar) -> h.Element:
        height = bar.value / top * (HEIGHT - TOP - BOTTOM)
        return rect(
            x=f"{LEFT + position * room + room * GAP / 2:.1f}",
            y=f"{HEIGHT - BOTTOM - height:.1f}",
            width=f"{room * (1 - GAP):.1f}",
            height=f"{height:.1f}",
            class_="bar-value",
        )[title[f"{bar.name}: {unit}{number(bar.value)}"]]

    most = max(shown, key=lambda bar: bar.value)
    said = f"{name}: {len(shown)} bars, the highest is {most.name} with {unit}{number(most.value)}"
    return h.figure(".chart")[
        caption,
        svg(viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=said, class_="plot")[
            (_level(top * part, top=top) for part in (0.0, 0.5, 1.0)),
            (draw(position, bar) for position, bar in enumerate(shown)),
            text(x=LEFT, y=HEIGHT - 6, class_="tick")[shown[0].name],
            text(x=WIDTH - RIGHT, y=HEIGHT - 6, class_="tick end")[shown[-1].name] if len(shown) > 1 else None,
        ],
    ]


def _level(value: float, *, top: float) -> h.Node:
    y = f"{HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM):.1f}"
    return [
        line(x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"),
        text(x=LEFT - 6, y=y, dy="0.32em", class_="tick end")[number(value)],
    ]


def shares_strip(name: str, shares: Sequence[tuple[str, float]]) -> h.Element:
    """Returns a strip that is divided by shares of a whole, with a legend.

    Args:
        name: what is divided.
        shares: the names and their percents, which sum to 100.
    """
    parts: list[h.Node] = []
    left = 0.0
    for index, (part, percent) in enumerate(shares):
        width = STRIP_WIDTH * percent / 100
        parts.append(
            rect(x=f"{left:.1f}", y=0, width=f"{width:.1f}", height=STRIP_HEIGHT, class_=f"part c{index % NUM_COLORS}")[
                title[f"{part}: {percent:g}%"]
            ]
        )
        left += width
    said = f"{name}: {', '.join(f'{part} {percent:g}%' for part, percent in shares) or 'none'}"
    return h.figure(".strip")[
        svg(
            viewBox=f"0 0 {STRIP_WIDTH} {STRIP_HEIGHT}",
            preserveAspectRatio="none",
            role="img",
            aria_label=said,
            class_="strip-plot",
        )[rect(x=0, y=0, width=STRIP_WIDTH, height=STRIP_HEIGHT, class_="strip-ground"), parts],
        h.ul(".legend")[
            (
                h.li(class_=f"c{index % NUM_COLORS}")[f"{part}: {percent:g}%"]
                for index, (part, percent) in enumerate(shares)
            )
        ],
    ]


def used_strip(name: str, *, part: float, is_bad_when_full: bool = True) -> h.Element:
    """Returns a strip that is filled as far as a limit is used, in another color from the limit on.

    Args:
        name: what is used, for those who cannot see it.
        part: the used part of the limit; 1 is all of it.
        is_bad_when_full: whether it is bad to have reached the limit.
    """
    full = "strip-over" if is_bad_when_full else "strip-full"
    width = STRIP_WIDTH * min(max(part, 0.0), 1.0)
    return svg(
        viewBox=f"0 0 {STRIP_WIDTH} {STRIP_HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=f"{name}: {part:.0%}",
        class_="strip-plot",
    )[
        rect(x=0, y=0, width=STRIP_WIDTH, height=STRIP_HEIGHT, class_="strip-ground"),
        rect(x=0, y=0, width=f"{width:.1f}", height=STRIP_HEIGHT, class_=full if part >= 1 else "bar-value"),
    ]
