"""``lockstep models scale``."""

from __future__ import annotations

from typing import Annotated

import typer

from lockstep.cli.console import DEFAULT_PROJECT, OUTPUT, ProjectOption, connect
from lockstep.cli.operations import split_version, wait_for_operation
from lockstep.errors import InvalidInputError, ModelError, counted


def scale(
    name: Annotated[str, typer.Argument(metavar="MODEL/VERSION", help="The version.")],
    nodes: Annotated[int, typer.Option(min=1, help="The number of prediction servers, each on a machine of its own.")],
    project: ProjectOption = DEFAULT_PROJECT,
) -> None:
    """Change the number of a version's prediction servers."""
    model, version = split_version(name)
    if version is None:
        raise InvalidInputError("the version is missing", received=name, allowed="MODEL/VERSION")
    with connect(project) as client:
        operation = client.scale_version(model, name=version, num_servers=nodes)
        operation = wait_for_operation(client, operation, model=model, version=version)
    if "error" in operation:
        raise ModelError(f"version {model}/{version} cannot be scaled: {operation['error']['message']}")
    OUTPUT.print(f"version {model}/{version} has {counted(nodes, 'prediction server')}")
