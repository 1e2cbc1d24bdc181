"""``lockstep models set-default``."""

from __future__ import annotations

from lockstep.cli.answers import Answer, answers
from lockstep.cli.console import DEFAULT_PROJECT, OUTPUT, ProjectOption, ReadyVersionArgument, connect
from lockstep.cli.operations import split_version
from lockstep.errors import InvalidInputError


@answers("VersionForm")
def set_default(name: ReadyVersionArgument, project: ProjectOption = DEFAULT_PROJECT) -> Answer:
    """Give a version all traffic of its model: it answers the requests that name no version."""
    model, version = split_version(name)
    if version is None:
        raise InvalidInputError("the version is missing", received=name, allowed="MODEL/VERSION")
    with connect(project) as client:
        found = client.set_default_version(model, name=version)
    return Answer(show=lambda: OUTPUT.print(f"version {version} is the default of {model}"), document=found)
