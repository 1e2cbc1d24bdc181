"""``lockstep keys list``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from lockstep.cli.answers import Answer, Column, answers
from lockstep.cli.console import connect, local_time
from lockstep.jobs.security.access import ALL_PROJECTS


@answers("KeyListForm", is_list=True)
def list_keys() -> Answer:
    """List all keys, the oldest first, without their secrets."""
    with connect() as client:
        keys = client.keys()
    return Answer.of_list({"keys": keys}, rows=keys, columns=COLUMNS, empty="no keys; only the home's token is valid")


def _project(key: Mapping[str, Any]) -> str:
    return "(all)" if key["project"] == ALL_PROJECTS else key["project"]


def _model(key: Mapping[str, Any]) -> str:
    return "/".join(name for name in (key["model"], key["version"]) if name is not None)


def _rate(key: Mapping[str, Any]) -> str:
    return "" if key["requestsPerSecond"] is None else f"{key['requestsPerSecond']:g}"


def _state(key: Mapping[str, Any], *, now: datetime) -> str:
    if key["revokeTime"] is not None:
        return f"revoked by {key['revokedBy']}"
    if key["expireTime"] is not None and datetime.fromisoformat(key["expireTime"]) <= now:
        return "expired"
    return "valid"


COLUMNS: Final = (
    Column(name="key", title="KEY"),
    Column(name="label", title="LABEL"),
    Column(name="scope", title="SCOPE"),
    Column(name="project", title="PROJECT", text=_project),
    Column(name="model", title="MODEL", text=_model),
    Column(name="version"),
    Column(name="requestsPerSecond", title="PER SECOND", text=_rate),
    Column(
        name="revokeTime",
        title="STATE",
        text=lambda key: _state(key, now=datetime.now(tz=UTC)),
    ),
    Column(name="revokedBy"),
    Column(name="createTime", title="CREATED", text=lambda key: local_time(key["createTime"])),
    Column(name="createdBy", title="BY"),
    Column(name="expireTime", title="EXPIRES", text=lambda key: local_time(key["expireTime"])),
    Column(name="lastUsedTime", title="LAST USED", text=lambda key: local_time(key["lastUsedTime"])),
)
