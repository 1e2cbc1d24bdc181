"""``lockstep data``: packs data sets into a bucket, and inspects and verifies packed files. One file per command."""

from __future__ import annotations

from lockstep.cli.data import inspect, pack, verify
from lockstep.cli.help import App

app = App("Pack data sets into a bucket, and look at what is packed.", name="data")
app.command("pack")(pack.pack)
app.command("inspect")(inspect.inspect)
app.command("verify")(verify.verify)
