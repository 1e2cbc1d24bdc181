"""``lockstep jobs``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

import typer
from rich.table import Table

from lockstep.cli.console import (
    DEFAULT_PROJECT,
    OUTPUT,
    ProjectOption,
    connect,
    local_time,
    progress_text,
    simulated_suffix,
)
from lockstep.errors import InvalidInputError, closest

SORTED_BY: Final[Mapping[str, Callable[[Mapping[str, Any]], Any]]] = {
    "jobId": lambda job: job["jobId"],
    "state": lambda job: job["state"],
    "createTime": lambda job: job["createTime"],
    "endTime": lambda job: job.get("endTime", ""),
    "mlUnits": lambda job: job.get("trainingOutput", {}).get("consumedMLUnits", -1.0),
}
"""The sort key of a job for each field that ``--sort-by`` accepts; a job without the field sorts first."""


def read_sort_key(text: str) -> Callable[[Mapping[str, Any]], Any]:
    """Returns the sort key function for a value of ``--sort-by``.

    Raises:
        InvalidInputError: there is no such field.
    """
    name = text.removeprefix("~")
    if name not in SORTED_BY:
        raise InvalidInputError("--sort-by", received=text, allowed=SORTED_BY, action=closest(name, SORTED_BY))
    return SORTED_BY[name]


def jobs(
    filter_text: Annotated[
        str, typer.Option("--filter", help="Such as 'jobId:rnn* AND state:FAILED'.", show_default=False)
    ] = "",
    limit: Annotated[int, typer.Option(min=1, help="The most jobs to list.")] = 20,
    sort_by: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD", help=f"{', '.join(SORTED_BY)}; ~FIELD for the largest first. By default the newest first."
        ),
    ] = None,
    project: ProjectOption = DEFAULT_PROJECT,
) -> None:
    """List jobs, the newest first."""
    with connect(project) as client:
        if sort_by is None:
            found = client.jobs(filter_text=filter_text, limit=limit)
        else:
            key = read_sort_key(sort_by)
            everything = client.jobs(filter_text=filter_text, limit=sys.maxsize)
            found = sorted(everything, key=key, reverse=sort_by.startswith("~"))[:limit]
    table = Table(box=None, pad_edge=False)
    for title in ("JOB", "STATE", "CREATED", "ENDED", "ML UNITS", "NOTE"):
        table.add_column(title, no_wrap=True)
    for job in found:
        units = job.get("trainingOutput", {}).get("consumedMLUnits")  # a batch prediction has none
        note = job["lockstep"]["waitingFor"] or ""
        if job["state"] == "RUNNING" and job["lockstep"]["progress"] is not None:
            note = progress_text(job["lockstep"]["progress"])
        table.add_row(
            job["jobId"],
            job["state"],
            local_time(job["createTime"]),
            local_time(job.get("endTime")),
            "-" if units is None else f"{units:.2f}",
            (note + simulated_suffix(job)).strip(),
        )
    OUTPUT.print(table if found else "no jobs")
