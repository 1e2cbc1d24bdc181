"""Figures of many measurements, and the tables that show them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Any

from rich.console import Console

console = Console(highlight=False, soft_wrap=True)


def percentile(values: Sequence[float], share: float) -> float:
    """Returns the smallest of the values that at least so much of them are not above."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Returns the median with the least and the most."""
    least, middle, most = (f"{value:,.{digits}f}" for value in (min(values), median(values), max(values)))
    return middle if least == most else f"{middle} ({least} to {most})"


def text_of(found: Any, digits: int = 2) -> str:
    """Returns what a cell shows of a figure, of the figures of rounds, or of a text; nothing for None."""
    if isinstance(found, str | None):
        return found or ""
    if isinstance(found, Sequence):
        texts = sorted({one for one in found if isinstance(one, str)})
        return "; ".join(texts) if texts or not found else spread(found, digits)
    return f"{found:,.{digits}f}"


def show(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table, in Markdown."""
    for number, row in enumerate((head, *rows)):
        console.print(f"| {' | '.join(row)} |")
        if number == 0:
            console.print(f"|{'---|' * len(head)}")
    console.print()
