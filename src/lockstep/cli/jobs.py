"""``lockstep jobs``."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from lockstep.cli.console import DEFAULT_PROJECT, OUTPUT, ProjectOption, connect, local_time, simulated_suffix


def jobs(
    filter_text: Annotated[
        str, typer.Option("--filter", help="Such as 'jobId:rnn* AND state:FAILED'.", show_default=False)
    ] = "",
    limit: Annotated[int, typer.Option(min=1, help="How many at the most.")] = 20,
    project: ProjectOption = DEFAULT_PROJECT,
) -> None:
    """List jobs, the newest first."""
    with connect(project) as client:
        found = client.jobs(filter_text=filter_text, limit=limit)
    table = Table(box=None, pad_edge=False)
    for title in ("JOB", "STATE", "CREATED", "ENDED", "ML UNITS", "NOTE"):
        table.add_column(title, no_wrap=True)
    for job in found:
        units = job["trainingOutput"].get("consumedMLUnits")
        waits = job["lockstep"]["waitingFor"] or ""
        table.add_row(
            job["jobId"],
            job["state"],
            local_time(job["createTime"]),
            local_time(job.get("endTime")),
            "-" if units is None else f"{units:.2f}",
            (waits + simulated_suffix(job)).strip(),
        )
    OUTPUT.print(table if found else "no jobs")
