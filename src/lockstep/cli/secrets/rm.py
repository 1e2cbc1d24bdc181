"""``lockstep secrets rm``."""

from __future__ import annotations

from lockstep.cli.console import DEFAULT_PROJECT, ProjectOption, connect
from lockstep.cli.secrets.setting import SecretArgument


def rm(name: SecretArgument, project: ProjectOption = DEFAULT_PROJECT) -> None:
    """Remove a secret. Jobs that have received it keep it until they end."""
    with connect(project) as client:
        client.remove_secret(name)
