"""``lockstep models``: deployed models and their versions, with one file per command."""

from __future__ import annotations

from lockstep.cli.help import App
from lockstep.cli.models import default, delete, describe, listing, rollback, scale, traffic, update, versions

app = App("List, describe, release, scale and delete deployed models and their versions.", name="models")
app.command("list")(listing.list_models)
app.command("describe")(describe.describe)
app.command("versions")(versions.versions)
app.command("set-default")(default.set_default)
app.command("traffic")(traffic.traffic)
app.command("rollback")(rollback.rollback)
app.command("scale")(scale.scale)
app.command("update")(update.update)
app.command("delete")(delete.delete)
