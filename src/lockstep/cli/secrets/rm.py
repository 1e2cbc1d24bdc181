"""``lockstep secrets rm``."""

from __future__ import annotations

from lockstep.cli.answers import Answer, answers
from lockstep.cli.console import DEFAULT_PROJECT, ProjectOption, connect
from lockstep.cli.secrets.setting import SecretArgument


@answers("SecretNameForm")
def rm(name: SecretArgument, project: ProjectOption = DEFAULT_PROJECT) -> Answer:
    """Remove a secret. Jobs that have received it keep it until they end."""
    with connect(project) as client:
        client.remove_secret(name)
    return Answer(show=lambda: None, document={"name": name})
