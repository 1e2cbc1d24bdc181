"""The whole command line as one Typer application, from which its reference is written."""

from __future__ import annotations

from lockstep.cli.commands import make_app

app = make_app()
