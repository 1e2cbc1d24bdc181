"""``lockstep local``: what a job would run, on this machine and without a service. One file a verb."""

from __future__ import annotations

import typer

from lockstep.cli.local import train

app = typer.Typer(help="Run a job's program on this machine, without a service.", no_args_is_help=True)


@app.callback()
def options() -> None:
    """Run a job's program on this machine, without a service."""


app.command("train")(train.train)
