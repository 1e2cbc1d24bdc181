"""``lockstep describe``."""

from __future__ import annotations

from lockstep.cli.answers import Answer, Format, answers
from lockstep.cli.console import DEFAULT_PROJECT, JobArgument, ProjectOption, connect
from lockstep.cli.next_commands import next_command


@answers("JobForm", hints=True)
def describe(
    job: JobArgument, project: ProjectOption = DEFAULT_PROJECT, *, output_format: Format = Format.TABLE
) -> Answer:
    """Show a job: its state, transitions, replicas and cost, and where its results are stored."""
    # Imported here because the summary's table and the client take a while to import, and the help needs neither.
    from lockstep.cli.job_models import model_urls
    from lockstep.cli.summary import print_summary

    with connect(project) as client:
        found = client.job(job)
        if output_format is Format.JSON:
            return Answer(document=found, show=lambda: None)
        events = client.job_events(job)
        models = model_urls(client, found)
    return Answer(
        show=lambda: print_summary(found, events, models=models),
        document=found,
        hint=next_command(found, models=models),
    )
