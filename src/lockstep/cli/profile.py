"""``lockstep profile``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Final

import typer

from lockstep.cli.answers import Answer, answers
from lockstep.cli.console import DEFAULT_PROJECT, OUTPUT, JobArgument, ProjectOption, connect
from lockstep.errors import InvalidInputError, counted

DEFAULT_STEPS: Final = 20
PERFETTO: Final = "https://ui.perfetto.dev"


@answers("FetchedProfileForm", hints=True)
def profile(
    job: JobArgument,
    steps: Annotated[int, typer.Option("--steps", help="Number of training steps to record, at most 1000.")] = (
        DEFAULT_STEPS
    ),
    replica: Annotated[
        str | None,
        typer.Option(help="Replica to record, such as worker-replica-1. Default: the first one that trains."),
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="FOLDER", help="Where to put the files. Default: JOB-profile here.")
    ] = None,
    timeout: Annotated[float, typer.Option("--timeout", help="How long to wait for the profile, in seconds.")] = 600.0,
    project: ProjectOption = DEFAULT_PROJECT,
) -> Answer:
    """Record a JAX profile of a running job's next training steps, and download it.

    Training goes on meanwhile. The files stay in the job's TensorBoard folder too. The job has to train with `fit`
    under a Lockstep strategy, or to call `lockstep.report_progress(step=...)` in its loop.
    """
    from lockstep.client.profiles import fetch_profile

    if timeout <= 0:
        raise InvalidInputError("--timeout", received=timeout, allowed="more than 0 seconds")
    folder = (to or Path(f"{job}-profile")).absolute()
    with connect(project) as client:
        files, num_steps = fetch_profile(client, job, num_steps=steps, replica=replica, to=folder, timeout_s=timeout)

    def show() -> None:
        few = f" of {steps}: training ended" if num_steps < steps else ""
        OUTPUT.print(f"recorded {counted(num_steps, 'step')}{few}")
        for file in files:
            OUTPUT.print(f"  {file}")
        if any(file.name.endswith(".trace.json.gz") for file in files):
            OUTPUT.print(f"a .trace.json.gz file opens in Perfetto: {PERFETTO}")

    return Answer(
        show=show,
        document={"job": job, "numSteps": num_steps, "files": [str(file) for file in files]},
        hint="to look at it (with xprof installed: pip install xprof): tensorboard --logdir "
        + shlex.quote(str(folder)),
    )
