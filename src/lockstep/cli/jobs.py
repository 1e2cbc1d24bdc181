"""``lockstep jobs``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

import typer

from lockstep.cli.answers import Answer, Column, answers
from lockstep.cli.console import (
    DEFAULT_PROJECT,
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


@answers("JobListForm", is_list=True)
def jobs(
    filter_text: Annotated[
        str,
        typer.Option(
            "--filter", help="Only jobs that match, such as 'jobId:rnn* AND state:FAILED'.", show_default=False
        ),
    ] = "",
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of jobs to list.")] = 20,
    sort_by: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD",
            help=f"Sort by {', '.join(SORTED_BY)}, or by ~FIELD for the largest first. Default: the newest first.",
        ),
    ] = None,
    order_by: Annotated[
        str | None,
        typer.Option(
            metavar="'FIELD [desc]'",
            help="Let the service sort, which is faster if there are many jobs: by createTime, startTime, endTime, "
            "elapsed, costUsd, numRestarts, jobId, state or submittedBy; with desc, the largest first.",
        ),
    ] = None,
    project: ProjectOption = DEFAULT_PROJECT,
) -> Answer:
    """List jobs, the newest first."""
    if sort_by is not None and order_by is not None:
        raise InvalidInputError("--sort-by and --order-by contradict each other", action="leave one of them out")
    with connect(project) as client:
        if sort_by is None:
            found = client.jobs(filter_text=filter_text, order_by=order_by or "", limit=limit)
        else:
            key = read_sort_key(sort_by)
            everything = client.jobs(filter_text=filter_text, limit=sys.maxsize)
            found = sorted(everything, key=key, reverse=sort_by.startswith("~"))[:limit]
    return Answer.of_list({"jobs": found}, rows=found, columns=COLUMNS, empty="no jobs")


def _units(job: Mapping[str, Any]) -> float | None:
    return job.get("trainingOutput", {}).get("consumedMLUnits")  # a batch prediction has none


def _units_text(job: Mapping[str, Any]) -> str:
    units = _units(job)
    return "-" if units is None else f"{units:.2f}"


def _note(job: Mapping[str, Any]) -> str:
    note = job["lockstep"]["waitingFor"] or ""
    if job["state"] == "RUNNING" and job["lockstep"]["progress"] is not None:
        note = progress_text(job["lockstep"]["progress"])
    return (note + simulated_suffix(job)).strip()


COLUMNS: Final = (
    Column(name="jobId", title="JOB"),
    Column(name="state", title="STATE"),
    Column(name="createTime", title="CREATED", text=lambda job: local_time(job["createTime"])),
    Column(name="startTime"),
    Column(name="endTime", title="ENDED", text=lambda job: local_time(job.get("endTime"))),
    Column(name="consumedMLUnits", title="ML UNITS", value=_units, text=_units_text),
    Column(name="submittedBy", value=lambda job: job["lockstep"]["submittedBy"]),
    Column(name="simulated", value=lambda job: job["lockstep"]["simulated"]),
    Column(name="endReason", value=lambda job: job["lockstep"]["endReason"]),
    Column(name="waitingFor", title="NOTE", value=lambda job: job["lockstep"]["waitingFor"], text=_note),
)
