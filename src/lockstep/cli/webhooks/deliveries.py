"""``lockstep webhooks deliveries``."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from lockstep.cli.answers import Answer, Column, answers
from lockstep.cli.completing import complete_job
from lockstep.cli.console import DEFAULT_PROJECT, ProjectOption, connect, local_time
from lockstep.errors import InvalidInputError


def _answered(delivery: dict[str, Any]) -> str:
    return str(delivery["problem"] or delivery["status"])


COLUMNS: Final = (
    Column(name="time", title="TIME", text=lambda delivery: local_time(delivery["time"])),
    Column(name="event", title="EVENT"),
    Column(name="project", title="PROJECT"),
    Column(name="jobId", title="JOB", text=lambda delivery: delivery["jobId"] or "-"),
    Column(name="state", title="STATE", text=lambda delivery: delivery["state"] or "-"),
    Column(name="attempt", title="ATTEMPT"),
    Column(name="status", title="ANSWER", text=_answered),
    Column(name="seconds", title="SECONDS", text=lambda delivery: f"{delivery['seconds']:.2f}"),
    Column(name="messageId", title="MESSAGE"),
)


@answers("DeliveryListForm", is_list=True)
def show_deliveries(
    name: Annotated[
        str,
        typer.Argument(help="A webhook of the operator, by its name; with --job, a webhook of the job, by its number."),
    ],
    job: Annotated[
        str | None,
        typer.Option(metavar="JOB", help="The job whose own webhook is meant.", autocompletion=complete_job),
    ] = None,
    project: ProjectOption = DEFAULT_PROJECT,
) -> Answer:
    """Show the last deliveries of a webhook: when, of which event, and how it was answered."""
    if job is not None and not name.isdecimal():
        raise InvalidInputError("--job", received=name, allowed="the number of one of its webhooks, from 0")
    with connect(project) as client:
        found = client.webhook_deliveries(name) if job is None else client.job_deliveries(job, number=int(name))
    return Answer.of_list({"deliveries": found}, rows=found, columns=COLUMNS, empty="no deliveries")
