"""``lockstep metrics``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from lockstep.cli.answers import Column, Format, answers, print_rows
from lockstep.cli.completing import complete_job, complete_version
from lockstep.cli.console import DEFAULT_PROJECT, ERRORS, OUTPUT, ProjectOption, connect, print_json, size
from lockstep.cli.operations import newest_version, split_version
from lockstep.cli.times import read_moment
from lockstep.cli.trials import explain_search, is_search
from lockstep.errors import InvalidInputError
from lockstep.jobs.running.metrics import Unit

if TYPE_CHECKING:
    from rich.table import Table

    from lockstep.client import Client

NUM_BARS: Final = 40
BARS: Final = "▁▂▃▄▅▆▇█"
GAP: Final = " "


@answers("SeriesForm", is_list=True, is_lines=True)
def metrics(
    job: Annotated[
        str | None, typer.Argument(metavar="JOB", help="The job's name.", autocompletion=complete_job)
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="MODEL[/VERSION]",
            help="Show the metrics of a version's prediction servers instead. Default: the newest version.",
            autocompletion=complete_version,
        ),
    ] = None,
    replica: Annotated[str | None, typer.Option(help="Only this replica, such as worker-replica-1.")] = None,
    server: Annotated[
        str | None,
        typer.Option(
            help="Only this prediction server, such as 3f2a90c1. Default: those that ran between --since and --until, "
            "or those that run now."
        ),
    ] = None,
    name: Annotated[list[str] | None, typer.Option(help="Only this metric; may be repeated.")] = None,
    since: Annotated[
        str | None, typer.Option(help="Start at a time (2026-01-31T12:00:00Z), or this long ago (10m, 2h).")
    ] = None,
    until: Annotated[str | None, typer.Option(help="End at a time, in the same form.")] = None,
    attempt: Annotated[
        int | None, typer.Option(min=0, help="Only this start of the job, from 0; by default the latest.")
    ] = None,
    project: ProjectOption = DEFAULT_PROJECT,
    *,
    output_format: Format = Format.TABLE,
) -> None:
    """Show the metrics of a job's replicas, or of a model's prediction servers, over time.

    These are CPU, memory, disks, network, GPUs, and what the programs report: steps and examples, or requests.
    """
    if (job is None) == (model is None):
        raise InvalidInputError("name either a job or --model", received=f"{job or 'no job'}, {model or 'no model'}")
    if model is not None and (replica is not None or attempt is not None):
        raise InvalidInputError("--replica and --attempt are only for jobs", action="leave them out")
    if job is not None and server is not None:
        raise InvalidInputError("--server is only for --model", action="leave it out")
    query = {
        "name": name or [],
        "replica": replica,
        "server": server,
        "attempt": attempt,
        "since": None if since is None else read_moment(since, flag="--since"),
        "until": None if until is None else read_moment(until, flag="--until"),
        "maxPoints": NUM_BARS if output_format is Format.TABLE else 2000,
    }
    query = {key: value for key, value in query.items() if value is not None}
    table = _table("REPLICA" if model is None else "SERVER") if output_format is Format.TABLE else None
    with connect(project) as client:
        if output_format is Format.CSV:
            print_rows((), columns=COLUMNS)
        is_empty = True
        for page in _pages(client, job=job, model=model, query=query):
            for series in page["series"]:
                is_empty = False
                if output_format is Format.JSON:
                    print_json(series)
                elif table is None:
                    print_rows(_points(series), columns=COLUMNS, has_header=False)
                else:
                    _add(table, series, interval_s=page["intervalSeconds"])
        if is_empty and job is not None and is_search(described := client.job(job)):
            ERRORS.print(explain_search(described, "lockstep metrics", what="metrics"))
    if table is not None:
        OUTPUT.print(table if table.row_count else "no metrics")


def _table(subject: str) -> Table:
    from rich.table import Table  # here, because the help needs none

    table = Table(box=None, pad_edge=False)
    for title in (subject, "METRIC", "UNIT"):
        table.add_column(title, no_wrap=True)
    for title in ("MIN", "MEAN", "MAX", "LAST"):
        table.add_column(title, no_wrap=True, justify="right")
    table.add_column("OVER TIME", no_wrap=True)
    return table


def _points(series: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for time_s, value in series["points"]:
        yield {**series, "time": time_s, "value": value}


COLUMNS: Final = tuple(Column(name=name) for name in ("server", "replica", "attempt", "name", "unit", "time", "value"))
"""The columns of one point."""


def _pages(
    client: Client, *, job: str | None, model: str | None, query: Mapping[str, Any]
) -> Iterator[Mapping[str, Any]]:
    if job is not None:
        return client.metric_pages(job, query=query)
    assert model is not None, "one of them is given"
    name, version = split_version(model)
    return client.version_metric_pages(name, version=version or newest_version(client, name), query=query)


def _add(table: Table, series: Mapping[str, Any], *, interval_s: float) -> None:
    points: Sequence[Sequence[float]] = series["points"]
    values = [value for _, value in points]
    written, unit = _writer(series["unit"])
    amounts = (min(values), sum(values) / len(values), max(values), values[-1])
    line = sparkline(points, interval_s=interval_s)
    table.add_row(
        series.get("server", series["replica"]), series["name"], unit, *(written(amount) for amount in amounts), line
    )


def _writer(unit: str) -> tuple[Callable[[float], str], str]:
    """Returns the function that formats values of a unit, and the text for the UNIT column."""
    if unit == Unit.BYTES:
        return size, ""
    if unit == Unit.BYTES_PER_S:
        return size, "a second"
    if unit == Unit.SHARE:
        return lambda value: f"{value:.0%}", ""
    return lambda value: f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}", unit


def value_text(value: float, *, unit: str) -> str:
    """Returns a value as text, in words of its unit if it is bytes or a share.

    Args:
        value: the value.
        unit: the unit, one of `Unit`.
    """
    return _writer(unit)[0](value)


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
