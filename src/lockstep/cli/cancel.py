"""``lockstep cancel``."""

from __future__ import annotations

import shlex

from lockstep.cli.answers import Answer, Format, answers
from lockstep.cli.console import DEFAULT_PROJECT, OUTPUT, JobArgument, ProjectOption, connect


@answers("JobForm", hints=True)
def cancel(
    job: JobArgument, project: ProjectOption = DEFAULT_PROJECT, *, output_format: Format = Format.TABLE
) -> Answer:
    """Cancel a job. Its programs get SIGTERM and a grace period."""
    with connect(project) as client:
        client.cancel_job(job)
        found = client.job(job) if output_format is Format.JSON else None
    return Answer(
        show=lambda: OUTPUT.print(f"job {job} is being cancelled"),
        document=found,
        hint=f"to see how it ends: lockstep describe {shlex.quote(job)}",
    )
