"""``lockstep top``."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.live import Live

from lockstep.cli.answers import Answer, Column, Format, answers
from lockstep.cli.completing import complete_job
from lockstep.cli.console import DEFAULT_PROJECT, ERRORS, OUTPUT, ProjectOption, connect
from lockstep.cli.next_commands import next_command
from lockstep.cli.top.reading import SHOWN, LastLine, View, read_job
from lockstep.cli.top.tables import job_table, jobs_table
from lockstep.client.following import AWAY_S
from lockstep.errors import LockstepError, StorageError, UnavailableError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from lockstep.client import Client

MAX_JOBS: Final = 20
"""How many jobs are shown at once without a job's name: each is at least one request for each look."""
LOG_BEFORE_S: Final = 60.0
"""How old the last line of the log may be when the command starts, in seconds."""
RUNNING: Final = "state:RUNNING OR state:PREPARING OR state:CANCELLING"
COLUMNS: Final = tuple(Column(name=name) for name in ("jobId", "state", "replica", *SHOWN, "progress", "cost"))
"""The columns of the CSV: a row for each job, or for each replica if one job is shown."""


@answers("UsageForm", "UsageListForm", is_list=True, hints=True)
def top(
    job: Annotated[
        str | None,
        typer.Argument(metavar="JOB", help="The job's name. Default: all jobs that run.", autocompletion=complete_job),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print one table and end, as without a terminal.")] = False,
    interval: Annotated[float, typer.Option(min=0.5, max=3600, help="Seconds between two looks.")] = 2.0,
    project: ProjectOption = DEFAULT_PROJECT,
    *,
    output_format: Format = Format.TABLE,
) -> Answer:
    """Show live what a job uses: CPU, memory, GPUs, network, examples per second, progress and cost so far.

    It ends with the job, or when you press Ctrl-C. With --json or --format csv, it prints the last values, once.
    """
    with connect(project) as client:
        if job is None:
            read, draw = (lambda: _read_running(client)), jobs_table
        else:
            lines = LastLine(client, job, since_s=time.time() - LOG_BEFORE_S)
            read, draw = (lambda: [_read_one(client, job, lines)]), lambda views: job_table(views[0])
        if output_format is not Format.TABLE or once or not OUTPUT.is_terminal:
            views = read()
            return Answer(
                show=lambda: OUTPUT.print(draw(views)),
                document={"jobs": [view.to_json() for view in views]} if job is None else views[0].to_json(),
                rows=[row for view in views for row in view.to_rows(is_alone=job is not None)],
                columns=COLUMNS,
                hint="" if job is None else next_command(views[0].job),
            )
        views = watch(client, read=read, draw=draw, interval_s=interval, is_endless=job is None)
    return Answer(show=lambda: None, hint=next_command(views[0].job) if job is not None and views else "")


def _read_one(client: Client, job: str, lines: LastLine) -> View:
    found = client.job(job)
    return read_job(client, found, last_line=lines.read())


def _read_running(client: Client) -> list[View]:
    return [read_job(client, found) for found in client.jobs(filter_text=RUNNING, limit=MAX_JOBS)]


def watch(
    client: Client,
    *,
    read: Callable[[], list[View]],
    draw: Callable[[list[View]], RenderableType],
    interval_s: float,
    is_endless: bool,
) -> list[View]:
    """Draws again and again, until the job has ended or the user presses Ctrl-C; returns what was drawn last.

    Args:
        client: a client of the service, which may be restarted meanwhile.
        read: reads what is shown.
        draw: returns what is drawn.
        interval_s: the time between two looks, in seconds.
        is_endless: whether to go on if all jobs have ended, because others may start.

    Raises:
        LockstepError: the service or its bucket did not answer for longer than `AWAY_S`, or there is no such job.
    """
    views: list[View] = []
    away_since: float | None = None
    with Live(console=OUTPUT, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:
        try:
            while True:
                try:
                    client.find_again()
                    views = read()
                except (UnavailableError, StorageError) as problem:
                    away_since = _wait_again(problem, away_since)
                else:
                    away_since = None
                    live.update(draw(views), refresh=True)
                    if not is_endless and all(view.is_over for view in views):
                        return views
                time.sleep(interval_s)
        except KeyboardInterrupt:  # the usual end
            return views


def _wait_again(problem: LockstepError, away_since: float | None) -> float:
    """Returns since when the service is away; raises its error if that is too long ago."""
    now = time.monotonic()
    if away_since is None:
        ERRORS.print(f"-- {problem}", style="dim")
        return now
    if now - away_since > AWAY_S:
        raise problem
    return away_since
