"""``lockstep bucket``: buckets (folders, ``gs://``, ``s3://``) and their objects, with one file per command."""

from __future__ import annotations

from lockstep.cli.bucket import cp, ls, mb, rm
from lockstep.cli.help import App

app = App("Make buckets, and list, copy and delete what is in them.", name="bucket")
app.command("mb")(mb.mb)
app.command("ls")(ls.ls)
app.command("cp")(cp.cp)
app.command("rm")(rm.rm)
