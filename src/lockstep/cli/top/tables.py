"""The tables of `lockstep top`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lockstep.cli.console import simulated_suffix
from lockstep.cli.metrics import sparkline, value_text
from lockstep.cli.top.reading import NETWORK, NUM_BARS, SHOWN, Curves, View, whole
from lockstep.jobs.running.metrics import Unit, unit_of

_TITLES: Final = {
    "cpuCores": "CPU",
    "memoryBytes": "MEMORY",
    "gpuUtilization": "GPU",
    NETWORK: "NETWORK/S",
    "examplesPerSecond": "EXAMPLES/S",
    "stepsPerSecond": "STEPS/S",
}
_COLOURS: Final = {"SUCCEEDED": "green", "FAILED": "red", "CANCELLED": "yellow"}
_WITH_BARS: Final = frozenset({"cpuCores", "memoryBytes", "gpuUtilization", NETWORK, "examplesPerSecond"})


def job_table(view: View) -> RenderableType:
    """Returns the table of one job: a line for each replica, below what the job as a whole does."""
    job = view.job
    state = Text(job["state"], style=_COLOURS.get(job["state"], ""))
    lines: list[RenderableType] = [
        Text.assemble(f"job {job['jobId']}: ", state, simulated_suffix(job)),
        Text(f"progress   {view.progress or '-'}"),
        Text(f"cost       {view.cost}"),
    ]
    phases = {replica["name"]: replica["end"] or replica["phase"] for replica in job["lockstep"]["replicas"]}
    names = [*phases, *(name for name in view.curves if name not in phases)]
    if names:
        empty = Curves()
        rows = [([name, phases.get(name, "")], view.curves.get(name, empty)) for name in names]
        lines.append(_table(("REPLICA", "PHASE"), rows))
    lines.append(Text(f"last line  {view.last_line or '-'}", no_wrap=True, overflow="ellipsis"))
    return Group(*lines)


def jobs_table(views: Sequence[View]) -> RenderableType:
    """Returns the table of several jobs, a line for each."""
    if not views:
        return Text("no job is running")
    rows = [([view.job["jobId"], view.job["state"] + simulated_suffix(view.job)], whole(view)) for view in views]
    ends = [[view.cost, view.progress] for view in views]
    return _table(("JOB", "STATE"), rows, last_titles=("COST", "PROGRESS"), ends=ends)


def _table(
    titles: Sequence[str],
    rows: Sequence[tuple[Sequence[str], Curves]],
    *,
    last_titles: Sequence[str] = (),
    ends: Sequence[Sequence[str]] = (),
) -> Table:
    """Returns a table with the metrics that at least one row has, between the first and the last columns."""
    table = Table(box=None, pad_edge=False)
    names = [name for name in SHOWN if any(name in curves.points for _, curves in rows)]
    for title in titles:
        table.add_column(title, no_wrap=True)
    for name in names:
        table.add_column(_TITLES[name], no_wrap=True, justify="right")
        if name in _WITH_BARS:
            table.add_column("", no_wrap=True)
    for title in last_titles:
        table.add_column(title, no_wrap=True)
    for number, (firsts, curves) in enumerate(rows):
        table.add_row(*firsts, *_cells(names, curves), *(ends[number] if ends else ()))
    return table


def _cells(names: Iterable[str], curves: Curves) -> Iterable[str]:
    for name in names:
        points = curves.points.get(name)
        yield "-" if not points else value_text(points[-1][1], unit=_unit(name))
        if name in _WITH_BARS:
            yield "" if not points else _bars(points, interval_s=curves.interval_s)


def _unit(name: str) -> str:
    return Unit.BYTES_PER_S if name == NETWORK else unit_of(name)


def _bars(points: Sequence[tuple[float, float]], *, interval_s: float) -> str:
    line = sparkline([list(point) for point in points], interval_s=interval_s)
    return line[-NUM_BARS:]
