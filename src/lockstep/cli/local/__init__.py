"""``lockstep local``: runs a job's program on this machine without a service, with one file per command."""

from __future__ import annotations

from lockstep.cli.help import App
from lockstep.cli.local import train

app = App("Run a job's program on this machine, without a service.", name="local")


@app.callback()
def options() -> None:
    """Run a job's program on this machine, without a service."""


app.command("train")(train.train)
