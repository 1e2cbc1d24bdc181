"""Results: figures of rounds, as JSON and as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, final

from harness.sides import SideError
from harness.tables import percentile, spread
from harness.turns import turns


@final
@dataclass(frozen=True, kw_only=True)
class Result:
    """What one side has reached in one case.

    Attributes:
        case: the case.
        side: the side.
        unit: the unit of the figures.
        values: a figure for each round.
        more: further figures.
        error: why there are fewer, or nothing.
    """

    case: str
    side: str
    unit: str
    values: Sequence[float] = ()
    more: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""

    @property
    def median(self) -> float | None:
        """The median of the rounds; None without one."""
        return median(self.values) if self.values else None

    def text(self, digits: int = 2) -> str:
        """Returns the median with the least and the most, or "failed"."""
        return spread(self.values, digits) if self.values else "failed"


def result_of(
    rounds: Sequence[Mapping[str, Any]], *, value: str, case: str, side: str, unit: str, error: str = "", **more: Any
) -> Result:
    """Returns the result of a side's rounds.

    Args:
        rounds: the figures of each round, by name.
        value: the name of the figure that counts. The others are further figures.
        case: the case.
        side: the side.
        unit: the unit of what counts.
        error: why there are fewer rounds, or nothing.
        more: further figures that are not of rounds.
    """
    names = dict.fromkeys(name for one in rounds for name in one)
    found = {name: [one[name] for one in rounds if one.get(name) is not None] for name in names}
    values = found.pop(value, [])
    return Result(case=case, side=side, unit=unit, values=values, more={**found, **more}, error=error)


def measure_in_turn(
    names: Iterable[tuple[str, str]],
    round_of: Callable[[str, str], Mapping[str, Any]],
    *,
    num_rounds: int,
    value: str,
    unit: str,
    warms_up: bool = False,
) -> list[Result]:
    """Measures all in turn, in this process or by what it starts; see `harness.turns.turns`.

    Args:
        names: cases and sides.
        round_of: measures a round of a side in a case, and returns its figures. A side that fails with a `SideError`
            is left out of the rounds that follow.
        num_rounds: how many rounds.
        value: see `result_of`.
        unit: the unit of the figures that count.
        warms_up: whether a first round does not count.
    """
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {name: [] for name in names}
    errors: dict[tuple[str, str], str] = {}
    for number, name in turns(found, num_rounds=num_rounds, warms_up=warms_up):
        if name not in errors:
            try:
                figures = round_of(*name)
            except SideError as error:
                errors[name] = str(error)
                continue
            if number >= 0:
                found[name].append(figures)
    return [
        result_of(rounds, value=value, case=case, side=side, unit=unit, error=errors.get((case, side), ""))
        for (case, side), rounds in found.items()
    ]


def figure_results(case: str, figures: Mapping[str, tuple[str, float]]) -> list[Result]:
    """Returns results of units and figures by name, each of which was measured once."""
    return [Result(case=case, side=name, unit=unit, values=[value]) for name, (unit, value) in figures.items()]


def timing_results(case: str, seconds: Mapping[str, Sequence[float]]) -> list[Result]:
    """Returns what requests took, by name: their number, median, 99th percentile and most, in milliseconds."""
    results = []
    for name, taken in seconds.items():
        found = {"p50": percentile(taken, 0.5), "p99": percentile(taken, 0.99), "most": max(taken)}
        more = {"requests": len(taken), **{key: round(1000 * value, 3) for key, value in found.items()}}
        results.append(Result(case=case, side=name, unit="milliseconds", values=[more["p50"]], more=more))
    return results
