"""``lockstep secrets``: a project's secrets, which are never shown, with one file per command."""

from __future__ import annotations

import typer

from lockstep.cli.secrets import listing, rm, setting

app = typer.Typer(help="Set, list and remove a project's secrets.", no_args_is_help=True)
app.command("set")(setting.set_secret)
app.command("list")(listing.list_secrets)
app.command("rm")(rm.rm)
