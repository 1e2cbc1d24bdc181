"""``lockstep bucket``: buckets (folders, ``gs://``, ``s3://``) and their objects, with one file per command."""

from __future__ import annotations

import typer

from lockstep.cli.bucket import cp, ls, mb, rm

app = typer.Typer(help="Make buckets, and list, copy and delete what is in them.", no_args_is_help=True)
app.command("mb")(mb.mb)
app.command("ls")(ls.ls)
app.command("cp")(cp.cp)
app.command("rm")(rm.rm)
