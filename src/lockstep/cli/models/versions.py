"""``lockstep models versions``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer
from rich.table import Table

from lockstep.cli.console import DEFAULT_PROJECT, OUTPUT, ProjectOption, connect, local_time
from lockstep.cli.operations import short_name, waiting_for
from lockstep.cli.traffic import traffic_of
from lockstep.client import Client
from lockstep.errors import NotFoundError

_MAY_WAIT: Final = ("CREATING", "READY")


def versions(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The model's name.")],
    limit: Annotated[int, typer.Option(min=1, help="The most versions to list.")] = 20,
    project: ProjectOption = DEFAULT_PROJECT,
) -> None:
    """List the versions of a model, the newest first, and what they wait for."""
    with connect(project) as client:
        split = traffic_of(client.model(model))
        found = client.versions(model, limit=limit)
        rows = [(version, _note(client, model, version)) for version in found]
    table = Table(box=None, pad_edge=False)
    for title in ("VERSION", "STATE", "TRAFFIC", "SERVERS", "MACHINE TYPE", "CREATED", "NOTE"):
        table.add_column(title, no_wrap=True)
    for version, note in rows:
        table.add_row(
            short_name(version),
            version["state"],
            f"{split.get(short_name(version), 0)}%",
            servers_text(version),
            version["machineType"],
            local_time(version["createTime"]),
            note,
        )
    OUTPUT.print(table if found else f"model {model} has no versions")


def servers_text(version: Mapping[str, Any]) -> str:
    """Returns the number of prediction servers that a version asks for; "-" if it does not say one."""
    return str(version.get("manualScaling", {}).get("nodes", "-"))


def _note(client: Client, model: str, version: Mapping[str, Any]) -> str:
    """Returns what a version waits for, which lists do not have, or why it failed."""
    if version["state"] in _MAY_WAIT:
        try:
            version = client.version(model, name=short_name(version))
        except NotFoundError:  # deleted since it was listed
            return ""
    return waiting_for(version) or version.get("errorMessage", "")
