"""``lockstep models``: deployed models and their versions, with one file per command."""

from __future__ import annotations

import typer

from lockstep.cli.models import default, delete, describe, listing, rollback, scale, traffic, update, versions

app = typer.Typer(
    help="List, describe, release, scale and delete deployed models and their versions.", no_args_is_help=True
)
app.command("list")(listing.list_models)
app.command("describe")(describe.describe)
app.command("versions")(versions.versions)
app.command("set-default")(default.set_default)
app.command("traffic")(traffic.traffic)
app.command("rollback")(rollback.rollback)
app.command("scale")(scale.scale)
app.command("update")(update.update)
app.command("delete")(delete.delete)
