"""``lockstep keys``: API keys and their permissions, with one file per command."""

from __future__ import annotations

from lockstep.cli.help import App
from lockstep.cli.keys import create, listing, revoke

app = App("Create, list and revoke API keys. For operators of all projects.", name="keys")
app.command("create")(create.create)
app.command("list")(listing.list_keys)
app.command("revoke")(revoke.revoke)
