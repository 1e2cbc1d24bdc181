"""``lockstep logs``."""

from __future__ import annotations

from typing import Annotated

import typer

from lockstep.cli.console import DEFAULT_PROJECT, JobArgument, ProjectOption, connect
from lockstep.cli.stream import follow, print_entry


def logs(
    job: JobArgument,
    follow_log: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job is over.")] = False,
    project: ProjectOption = DEFAULT_PROJECT,
) -> None:
    """Print a job's log; every line exactly once."""
    with connect(project) as client:
        if follow_log:
            follow(client, job)
            return
        several = len(client.job(job)["lockstep"]["replicas"]) > 1
        for entry in client.log_lines(job):
            print_entry(entry, with_replica=several)
