"""``lockstep metrics``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final

import typer
from rich.table import Table

from lockstep.cli.console import DEFAULT_PROJECT, OUTPUT, JobArgument, ProjectOption, connect, print_json, size
from lockstep.cli.times import read_moment
from lockstep.jobs.running.metrics import Unit

NUM_BARS: Final = 40
BARS: Final = "▁▂▃▄▅▆▇█"
GAP: Final = " "


def metrics(
    job: JobArgument,
    replica: Annotated[str | None, typer.Option(help="Only this replica, such as worker-replica-1.")] = None,
    name: Annotated[list[str] | None, typer.Option(help="Only this metric; may be repeated.")] = None,
    since: Annotated[
        str | None, typer.Option(help="Start at a time (2026-01-31T12:00:00Z), or this long ago (10m, 2h).")
    ] = None,
    until: Annotated[str | None, typer.Option(help="End at a time, in the same form.")] = None,
    attempt: Annotated[
        int | None, typer.Option(min=0, help="Only this start of the job, from 0; by default the latest.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all points as JSON, one series on each line.")] = False,
    project: ProjectOption = DEFAULT_PROJECT,
) -> None:
    """Show the metrics of a job's replicas over time: CPU, memory, disks, network, GPUs, steps and examples."""
    query = {
        "name": name or [],
        "replica": replica,
        "attempt": attempt,
        "since": None if since is None else read_moment(since, flag="--since"),
        "until": None if until is None else read_moment(until, flag="--until"),
        "maxPoints": 2000 if as_json else NUM_BARS,
    }
    table = Table(box=None, pad_edge=False)
    for title in ("REPLICA", "METRIC", "UNIT"):
        table.add_column(title, no_wrap=True)
    for title in ("MIN", "MEAN", "MAX", "LAST"):
        table.add_column(title, no_wrap=True, justify="right")
    table.add_column("OVER TIME", no_wrap=True)
    with connect(project) as client:
        for page in client.metric_pages(job, query={key: value for key, value in query.items() if value is not None}):
            for series in page["series"]:
                if as_json:
                    print_json(series)
                else:
                    _add(table, series, interval_s=page["intervalSeconds"])
    if not as_json:
        OUTPUT.print(table if table.row_count else "no metrics")


def _add(table: Table, series: Mapping[str, Any], *, interval_s: float) -> None:
    points: Sequence[Sequence[float]] = series["points"]
    values = [value for _, value in points]
    written, unit = _writer(series["unit"])
    amounts = (min(values), sum(values) / len(values), max(values), values[-1])
    line = sparkline(points, interval_s=interval_s)
    table.add_row(series["replica"], series["name"], unit, *(written(amount) for amount in amounts), line)


def _writer(unit: str) -> tuple[Callable[[float], str], str]:
    """Returns the function that formats values of a unit, and the text for the UNIT column."""
    if unit == Unit.BYTES:
        return size, ""
    if unit == Unit.BYTES_PER_S:
        return size, "a second"
    if unit == Unit.SHARE:
        return lambda value: f"{value:.0%}", ""
    return lambda value: f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}", unit


def sparkline(points: Sequence[Sequence[float]], *, interval_s: float) -> str:
    """Returns points as bars, scaled between the smallest and the largest value, with gaps between measurements.

    Args:
        points: pairs of a time in seconds and a value, at most one for each interval.
        interval_s: the length of an interval, in seconds.
    """
    first_s = points[0][0]
    places = {round((time_s - first_s) / interval_s): value for time_s, value in points}
    halves = {place: value / 2 for place, value in places.items()}  # so that their span never overflows a float
    low = min(halves.values())
    span = max(halves.values()) - low
    bars = {place: BARS[round((half - low) / span * (len(BARS) - 1)) if span else 0] for place, half in halves.items()}
    return "".join(bars.get(place, GAP) for place in range(max(places) + 1))
