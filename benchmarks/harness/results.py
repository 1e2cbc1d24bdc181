"""Results: figures of rounds, as JSON and as text."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, final

from harness.machine import describe_machine, machine_line
from harness.tables import console, percentile, spread


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


def show_machine(**settings: object) -> None:
    """Prints the machine, and the benchmark's settings."""
    console.print("; ".join([machine_line(), *(f"{name}: {value}" for name, value in settings.items())]) + "\n")


def write_results(
    options: argparse.Namespace, results: Sequence[Result], *, packages: Mapping[str, str], **more: Any
) -> None:
    """Writes results with the machine, the command and the versions that they are of. Ends the program if any failed.

    Args:
        options: of `harness.options.parse_options`.
        results: the results.
        packages: the versions of each side's packages.
        more: further keys.
    """
    command = shlex.join(["python", *sys.argv])
    told = {"machine": describe_machine(), "command": command, "isSmall": options.small, "packages": dict(packages)}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps({**told, **more, "results": [asdict(one) for one in results]}, indent=2) + "\n")
    console.print(f"results: {options.json}")
    errors = [one.error for one in results if one.error]
    if errors:
        sys.exit(f"benchmarks/{options.name}.py: " + "\n".join(errors))
