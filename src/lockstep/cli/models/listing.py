"""``lockstep models list``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from lockstep.cli.answers import Answer, Column, answers
from lockstep.cli.console import DEFAULT_PROJECT, ProjectOption, connect, local_time
from lockstep.cli.models.servers import num_ready, num_wanted, servers_text, with_servers
from lockstep.cli.operations import short_name

if TYPE_CHECKING:
    from lockstep.client import Client


@answers("ModelListForm", is_list=True)
def list_models(
    filter_text: Annotated[
        str,
        typer.Option(
            "--filter", help="Only models that match, such as 'name:digits*'; see docs/contract.md.", show_default=False
        ),
    ] = "",
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of models to list.")] = 20,
    project: ProjectOption = DEFAULT_PROJECT,
) -> Answer:
    """List models and their default versions, the newest first."""
    with connect(project) as client:
        found = [_with_default(client, model) for model in client.models(filter_text=filter_text, limit=limit)]
    return Answer.of_list({"models": found}, rows=found, columns=COLUMNS, empty="no models")


def _with_default(client: Client, model: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a model with all that is known of its default version."""
    default = model.get("defaultVersion")
    return model if default is None else {**model, "defaultVersion": with_servers(client, short_name(model), default)}


def _of_default(
    name: str,
    title: str = "",
    *,
    value: Callable[[Mapping[str, Any]], object],
    text: Callable[[Mapping[str, Any]], str] | None = None,
) -> Column:
    """Returns a column about the default version: empty in CSV and "-" in the table if there is none."""
    shown = text or (lambda version: str(value(version)))
    return Column(
        name=name,
        title=title,
        value=lambda model: value(model["defaultVersion"]) if "defaultVersion" in model else None,
        text=lambda model: shown(model["defaultVersion"]) if "defaultVersion" in model else "-",
    )


COLUMNS: Final = (
    Column(name="name", title="MODEL", value=short_name),
    _of_default("defaultVersion", "DEFAULT VERSION", value=short_name),
    _of_default("state", "STATE", value=lambda version: version["state"]),
    _of_default("numReadyServers", "SERVERS", value=num_ready, text=servers_text),
    _of_default("numServers", value=num_wanted),
    _of_default(
        "deployTime",
        "DEPLOYED",
        value=lambda version: version["createTime"],
        text=lambda version: local_time(version["createTime"]),
    ),
    Column(name="description", title="DESCRIPTION"),
)
