"""``lockstep cancel``."""

from __future__ import annotations

from lockstep.cli.console import DEFAULT_PROJECT, OUTPUT, JobArgument, ProjectOption, connect


def cancel(job: JobArgument, project: ProjectOption = DEFAULT_PROJECT) -> None:
    """Cancel a job. Its programs get SIGTERM and a grace period."""
    with connect(project) as client:
        client.cancel_job(job)
    OUTPUT.print(f"job {job} is being cancelled; see `lockstep describe {job}`")
