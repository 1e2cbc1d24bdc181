"""``lockstep keys``: API keys and their permissions, with one file per command."""

from __future__ import annotations

import typer

from lockstep.cli.keys import create, listing, revoke

app = typer.Typer(help="Create, list and revoke API keys. For operators of all projects.", no_args_is_help=True)
app.command("create")(create.create)
app.command("list")(listing.list_keys)
app.command("revoke")(revoke.revoke)
