"""``lockstep image``: container images for jobs, with podman or docker. One file per command."""

from __future__ import annotations

import typer

from lockstep.cli.image import build, push

app = typer.Typer(help="Build and push container images for jobs, with podman or docker.", no_args_is_help=True)
app.command("build")(build.build)
app.command("push")(push.push)
