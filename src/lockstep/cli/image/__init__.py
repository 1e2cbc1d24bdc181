"""``lockstep image``: container images for jobs, with podman or docker. One file per command."""

from __future__ import annotations

from lockstep.cli.help import App
from lockstep.cli.image import build, push

app = App("Build and push container images for jobs, with podman or docker.", name="image")
app.command("build")(build.build)
app.command("push")(push.push)
