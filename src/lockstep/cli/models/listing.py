"""``lockstep models list``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.table import Table

from lockstep.cli.console import DEFAULT_PROJECT, OUTPUT, ProjectOption, connect, local_time
from lockstep.cli.models.servers import servers_text, with_servers
from lockstep.cli.operations import short_name
from lockstep.client import Client


def list_models(
    filter_text: Annotated[
        str, typer.Option("--filter", help="Such as 'name:digits*'; see docs/contract.md.", show_default=False)
    ] = "",
    limit: Annotated[int, typer.Option(min=1, help="The most models to list.")] = 20,
    project: ProjectOption = DEFAULT_PROJECT,
) -> None:
    """List models and their default versions, the newest first."""
    with connect(project) as client:
        found = client.models(filter_text=filter_text, limit=limit)
        defaults = [_default_version(client, model) for model in found]
    table = Table(box=None, pad_edge=False)
    for title in ("MODEL", "DEFAULT VERSION", "STATE", "SERVERS", "DEPLOYED", "DESCRIPTION"):
        table.add_column(title, no_wrap=True)
    for model, default in zip(found, defaults, strict=True):
        table.add_row(
            short_name(model),
            "-" if default is None else short_name(default),
            "-" if default is None else default["state"],
            "-" if default is None else servers_text(default),
            local_time(None if default is None else default["createTime"]),
            model.get("description", ""),
        )
    OUTPUT.print(table if found else "no models")


def _default_version(client: Client, model: Mapping[str, Any]) -> Mapping[str, Any] | None:
    default = model.get("defaultVersion")
    return None if default is None else with_servers(client, short_name(model), default)
