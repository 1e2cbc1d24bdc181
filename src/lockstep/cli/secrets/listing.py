"""``lockstep secrets list``."""

from __future__ import annotations

from rich.table import Table

from lockstep.cli.console import DEFAULT_PROJECT, OUTPUT, ProjectOption, connect, local_time


def list_secrets(project: ProjectOption = DEFAULT_PROJECT) -> None:
    """List a project's secrets by name, without their values."""
    with connect(project) as client:
        secrets = client.secrets()
    table = Table(box=None, pad_edge=False)
    for title in ("SECRET", "CREATED", "SET", "BY"):
        table.add_column(title, no_wrap=True)
    for secret in secrets:
        times = (local_time(secret["createTime"]), local_time(secret["updateTime"]))
        table.add_row(secret["name"], *times, secret["updatedBy"])
    OUTPUT.print(table if secrets else "no secrets")
