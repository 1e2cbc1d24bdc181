"""``lockstep describe``."""

from __future__ import annotations

from typing import Annotated

import typer

from lockstep.cli.console import DEFAULT_PROJECT, JobArgument, ProjectOption, connect, print_json
from lockstep.cli.job_models import model_urls
from lockstep.cli.summary import print_summary


def describe(
    job: JobArgument,
    project: ProjectOption = DEFAULT_PROJECT,
    as_json: Annotated[bool, typer.Option("--json", help="Print the contract's JSON.")] = False,
) -> None:
    """Show a job: its state, transitions, replicas and cost, and where its results are stored."""
    with connect(project) as client:
        found = client.job(job)
        events = client.job_events(job)
        models = [] if as_json else model_urls(client, found)
    if as_json:
        print_json(found, indent=2)
    else:
        print_summary(found, events, models=models)
