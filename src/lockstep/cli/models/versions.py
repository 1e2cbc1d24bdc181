"""``lockstep models versions``."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from lockstep.cli.console import DEFAULT_PROJECT, OUTPUT, ProjectOption, connect, local_time
from lockstep.cli.models.servers import servers_text, with_servers
from lockstep.cli.operations import short_name, waiting_for
from lockstep.cli.traffic import traffic_of


def versions(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The model's name.")],
    limit: Annotated[int, typer.Option(min=1, help="The most versions to list.")] = 20,
    project: ProjectOption = DEFAULT_PROJECT,
) -> None:
    """List the versions of a model, the newest first: how many of their servers are ready, and what they wait for."""
    with connect(project) as client:
        split = traffic_of(client.model(model))
        found = [with_servers(client, model, version) for version in client.versions(model, limit=limit)]
    table = Table(box=None, pad_edge=False)
    for title in ("VERSION", "STATE", "TRAFFIC", "SERVERS", "MACHINE TYPE", "CREATED", "NOTE"):
        table.add_column(title, no_wrap=True)
    for version in found:
        table.add_row(
            short_name(version),
            version["state"],
            f"{split.get(short_name(version), 0)}%",
            servers_text(version),
            version["machineType"],
            local_time(version["createTime"]),
            waiting_for(version) or version.get("errorMessage", ""),
        )
    OUTPUT.print(table if found else f"model {model} has no versions")
