"""``lockstep data``: packs data sets into a bucket, and inspects and verifies packed files. One file per command."""

from __future__ import annotations

import typer

from lockstep.cli.data import inspect, pack, verify

app = typer.Typer(help="Pack data sets into a bucket, and look at what is packed.", no_args_is_help=True)
app.command("pack", epilog=pack.EXAMPLES)(pack.pack)
app.command("inspect")(inspect.inspect)
app.command("verify")(verify.verify)
