"""``lockstep secrets list``."""

from __future__ import annotations

from typing import Final

from lockstep.cli.answers import Answer, Column, answers
from lockstep.cli.console import DEFAULT_PROJECT, ProjectOption, connect, local_time

COLUMNS: Final = (
    Column(name="name", title="SECRET"),
    Column(name="createTime", title="CREATED", text=lambda secret: local_time(secret["createTime"])),
    Column(name="updateTime", title="SET", text=lambda secret: local_time(secret["updateTime"])),
    Column(name="updatedBy", title="BY"),
)


@answers("SecretListForm", is_list=True)
def list_secrets(project: ProjectOption = DEFAULT_PROJECT) -> Answer:
    """List a project's secrets by name, without their values."""
    with connect(project) as client:
        secrets = client.secrets()
    return Answer.of_list({"secrets": secrets}, rows=secrets, columns=COLUMNS, empty="no secrets")
