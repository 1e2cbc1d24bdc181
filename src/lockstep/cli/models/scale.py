"""``lockstep models scale``."""

from __future__ import annotations

from typing import Annotated

import typer

from lockstep.cli.answers import Answer, Format, answers
from lockstep.cli.console import DEFAULT_PROJECT, OUTPUT, ProjectOption, ReadyVersionArgument, connect
from lockstep.cli.models.servers import num_wanted, scaling_text
from lockstep.cli.operations import TimeoutOption, split_version, timeout_of, wait_for_operation
from lockstep.errors import InvalidInputError, ModelError, counted


@answers("VersionForm")
def scale(
    name: ReadyVersionArgument,
    nodes: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="The number of prediction servers, each on a machine of its own; for a version with a fixed number.",
        ),
    ] = None,
    min_nodes: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Minimum number of prediction servers; for a version whose number follows its load. "
            "Default: as it is.",
        ),
    ] = None,
    max_nodes: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of prediction servers; likewise. Default: as it is.")
    ] = None,
    timeout: TimeoutOption = None,
    project: ProjectOption = DEFAULT_PROJECT,
    *,
    output_format: Format = Format.TABLE,
) -> Answer:
    """Change the number of a version's prediction servers, or the bounds of this number."""
    model, version = split_version(name)
    if version is None:
        raise InvalidInputError("the version is missing", received=name, allowed="MODEL/VERSION")
    has_bounds = min_nodes is not None or max_nodes is not None
    if (nodes is None) != has_bounds:
        raise InvalidInputError(
            "the number of servers",
            received="both --nodes and bounds" if has_bounds else "no number",
            allowed="--nodes, or --min-nodes and --max-nodes or one of them",
        )
    timeout_s = timeout_of(timeout)
    with connect(project) as client:
        operation = client.scale_version(
            model, name=version, num_servers=nodes, min_servers=min_nodes, max_servers=max_nodes
        )
        operation = wait_for_operation(client, operation, model=model, version=version, timeout_s=timeout_s)
        if "error" in operation:
            raise ModelError(f"version {model}/{version} cannot be scaled: {operation['error']['message']}")
        is_shown = nodes is None or output_format is Format.JSON
        found = client.version(model, name=version) if is_shown else {}
    text = counted(num_wanted(found) or 0 if nodes is None else nodes, "prediction server")
    if nodes is None:
        text += f": {scaling_text(found)}"
    return Answer(show=lambda: OUTPUT.print(f"version {model}/{version} has {text}"), document=found)
