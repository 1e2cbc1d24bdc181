"""``lockstep models versions``."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from lockstep.cli.answers import Answer, Column, answers
from lockstep.cli.console import DEFAULT_PROJECT, ModelArgument, ProjectOption, connect, local_time
from lockstep.cli.models.servers import num_ready, num_wanted, servers_text, with_servers
from lockstep.cli.operations import short_name, waiting_for
from lockstep.cli.traffic import traffic_of


@answers("VersionListForm", is_list=True)
def versions(
    model: ModelArgument,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of versions to list.")] = 20,
    project: ProjectOption = DEFAULT_PROJECT,
) -> Answer:
    """List the versions of a model, the newest first: how many of their servers are ready, and what they wait for."""
    with connect(project) as client:
        split = traffic_of(client.model(model))
        found = [with_servers(client, model, version) for version in client.versions(model, limit=limit)]
    return Answer.of_list(
        {"versions": found},
        rows=[(version, split.get(short_name(version), 0)) for version in found],
        columns=COLUMNS,
        empty=f"model {model} has no versions",
    )


def _note(row: Any) -> str:
    version, _ = row
    return waiting_for(version) or version.get("errorMessage", "")


COLUMNS: Final = (
    Column(name="name", title="VERSION", value=lambda row: short_name(row[0])),
    Column(name="state", title="STATE", value=lambda row: row[0]["state"]),
    Column(name="trafficPercent", title="TRAFFIC", value=lambda row: row[1], text=lambda row: f"{row[1]}%"),
    Column(
        name="numReadyServers",
        title="SERVERS",
        value=lambda row: num_ready(row[0]),
        text=lambda row: servers_text(row[0]),
    ),
    Column(name="numServers", value=lambda row: num_wanted(row[0])),
    Column(name="machineType", title="MACHINE TYPE", value=lambda row: row[0]["machineType"]),
    Column(
        name="createTime",
        title="CREATED",
        value=lambda row: row[0]["createTime"],
        text=lambda row: local_time(row[0]["createTime"]),
    ),
    Column(name="note", title="NOTE", value=_note),
)
"""The columns of a version and its percent of the traffic."""
