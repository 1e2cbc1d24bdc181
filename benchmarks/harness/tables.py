"""Figures of many measurements, and the tables that show them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

from rich.console import Console

console = Console(highlight=False, soft_wrap=True)


def percentile(values: Sequence[float], share: float) -> float:
    """Returns the smallest of the values that at least so much of them are not above."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


@final
@dataclass(kw_only=True)
class Timings:
    """How long something took, each time."""

    name: str
    seconds: list[float] = field(default_factory=list)

    def row(self) -> tuple[str, ...]:
        """Returns name, number, median, 99th percentile and most, in milliseconds."""
        shown = (percentile(self.seconds, 0.5), percentile(self.seconds, 0.99), max(self.seconds))
        return self.name, f"{len(self.seconds):,}", *(f"{seconds * 1000:.1f}" for seconds in shown)


TIMINGS_HEAD = ("milliseconds", "requests", "p50", "p99", "most")


def show(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table, in Markdown."""
    for number, row in enumerate((head, *rows)):
        console.print(f"| {' | '.join(row)} |")
        if number == 0:
            console.print(f"|{'---|' * len(head)}")
    console.print()
