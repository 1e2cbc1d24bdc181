"""``lockstep keys list``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from rich.table import Table

from lockstep.cli.console import OUTPUT, connect, local_time
from lockstep.jobs.security.access import ALL_PROJECTS


def list_keys() -> None:
    """List all keys, the oldest first, without their secrets."""
    with connect() as client:
        keys = client.keys()
    table = Table(box=None, pad_edge=False)
    for title in (
        "KEY",
        "LABEL",
        "SCOPE",
        "PROJECT",
        "MODEL",
        "PER SECOND",
        "STATE",
        "CREATED",
        "BY",
        "EXPIRES",
        "LAST USED",
    ):
        table.add_column(title, no_wrap=True)
    for key in keys:
        table.add_row(
            key["key"],
            key["label"],
            key["scope"],
            "(all)" if key["project"] == ALL_PROJECTS else key["project"],
            "/".join(name for name in (key["model"], key["version"]) if name is not None),
            "" if key["requestsPerSecond"] is None else f"{key['requestsPerSecond']:g}",
            _state(key, now=datetime.now(tz=UTC)),
            local_time(key["createTime"]),
            key["createdBy"],
            local_time(key["expireTime"]),
            local_time(key["lastUsedTime"]),
        )
    OUTPUT.print(table if keys else "no keys; only the home's token is valid")


def _state(key: Mapping[str, Any], *, now: datetime) -> str:
    if key["revokeTime"] is not None:
        return f"revoked by {key['revokedBy']}"
    if key["expireTime"] is not None and datetime.fromisoformat(key["expireTime"]) <= now:
        return "expired"
    return "valid"
