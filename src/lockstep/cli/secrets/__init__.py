"""``lockstep secrets``: a project's secrets, which are never shown, with one file per command."""

from __future__ import annotations

from lockstep.cli.help import App
from lockstep.cli.secrets import listing, rm, setting

app = App("Set, list and remove a project's secrets.", name="secrets")
app.command("set")(setting.set_secret)
app.command("list")(listing.list_secrets)
app.command("rm")(rm.rm)
