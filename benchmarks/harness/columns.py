"""The columns of tables that show results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from harness.results import Result
from harness.tables import show, text_of

Cell = Callable[[Result], str]
"""What a column of a table shows of a result."""


def case(result: Result) -> str:
    """Shows the case."""
    return result.case


def side(result: Result) -> str:
    """Shows the side."""
    return result.side


def unit(result: Result) -> str:
    """Shows the unit of the figures."""
    return result.unit


def values(digits: int = 2) -> Cell:
    """Shows the median of the rounds with the least and the most."""
    return lambda result: result.text(digits)


def more(name: str, digits: int = 2) -> Cell:
    """Shows a further figure: of rounds, the median with the least and the most."""
    return lambda result: text_of(result.more.get(name), digits)


def of_ours(results: Sequence[Result], ours: str | Sequence[str], *, rates: bool = False) -> Cell:
    """Shows how many times as long a side takes as ours in the same case; nothing for ours.

    Args:
        results: all results.
        ours: the side that others are compared with, or more of them: one in a case.
        rates: whether figures are rates. Then it shows how many times as fast ours is.
    """
    names = (ours,) if isinstance(ours, str) else ours
    own = {one.case: one.median for one in results if one.side in names}

    def cell(result: Result) -> str:
        theirs, found = result.median, own.get(result.case)
        if result.side in names or not theirs or not found:
            return ""
        return f"{found / theirs if rates else theirs / found:.2f}"

    return cell


def show_results(results: Sequence[Result], columns: Mapping[str, Cell]) -> None:
    """Prints a row for each result, in Markdown."""
    show(tuple(columns), [tuple(cell(one) for cell in columns.values()) for one in results])


def show_figures(results: Sequence[Result]) -> None:
    """Prints what each figure is, its unit, and the figure."""

    def figure(result: Result) -> str:
        return result.text(0 if max(map(abs, result.values)) >= 100 else 2)

    show_results(results, {results[0].case: side, "unit": unit, "figure": figure})


def show_timings(results: Sequence[Result]) -> None:
    """Prints results of `harness.results.timing_results`."""
    shown = {f"{results[0].case}: milliseconds": side, "requests": more("requests", 0)}
    show_results(results, {**shown, **{name: more(name, 1) for name in ("p50", "p99", "most")}})
