"""``lockstep models set-default``."""

from __future__ import annotations

from typing import Annotated

import typer

from lockstep.cli.console import DEFAULT_PROJECT, OUTPUT, ProjectOption, connect
from lockstep.cli.operations import split_version
from lockstep.errors import InvalidInputError


def set_default(
    name: Annotated[str, typer.Argument(metavar="MODEL/VERSION", help="The version; it must be READY.")],
    project: ProjectOption = DEFAULT_PROJECT,
) -> None:
    """Give a version all traffic of its model: it answers the requests that name no version."""
    model, version = split_version(name)
    if version is None:
        raise InvalidInputError("the version is missing", received=name, allowed="MODEL/VERSION")
    with connect(project) as client:
        client.set_default_version(model, name=version)
    OUTPUT.print(f"version {version} is the default of {model}")
