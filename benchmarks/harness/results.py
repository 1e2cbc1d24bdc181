"""Results: figures of rounds, as JSON and as text."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, final

from harness.machine import describe_machine
from harness.tables import console


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
        middle = self.median
        if middle is None:
            return "failed"
        return f"{middle:,.{digits}f} ({min(self.values):,.{digits}f} to {max(self.values):,.{digits}f})"


def write_results(path: Path, results: Sequence[Result], *, packages: Mapping[str, str], **more: Any) -> None:
    """Writes results with the machine, the command and the versions that they are of.

    Args:
        path: the file, as JSON.
        results: the results.
        packages: the versions of each side's packages.
        more: further keys.
    """
    command = shlex.join(["python", *sys.argv])
    told = {"machine": describe_machine(), "command": command, "packages": dict(packages), **more}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**told, "results": [asdict(one) for one in results]}, indent=2) + "\n")
    console.print(f"results: {path}")
