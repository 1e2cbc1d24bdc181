"""``lockstep local``: runs a job's program on this machine without a service, with one file per command."""

from __future__ import annotations

import typer

from lockstep.cli.local import train

app = typer.Typer(help="Run a job's program on this machine, without a service.", no_args_is_help=True)


@app.callback()
def options() -> None:
    """Run a job's program on this machine, without a service."""


app.command("train")(train.train)
