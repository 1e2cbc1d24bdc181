"""``lockstep undeploy``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from lockstep.cli.console import DEFAULT_PROJECT, ERRORS, OUTPUT, ProjectOption, confirm, connect
from lockstep.cli.operations import short_name, split_version, wait_for_operation
from lockstep.client import Client
from lockstep.errors import InvalidInputError, ModelError, counted


def undeploy(
    name: Annotated[
        str, typer.Argument(metavar="MODEL[/VERSION]", help="The version; a model with all its versions, asks first.")
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    project: ProjectOption = DEFAULT_PROJECT,
) -> None:
    """Delete a version, or a model with all its versions, and wait until the prediction servers have ended.

    The model files that were deployed are kept.
    """
    model, version = split_version(name)
    with connect(project) as client:
        if version is not None:
            _delete_versions(client, model, [version])
            OUTPUT.print(f"deleted version {model}/{version}")
            return
        _undeploy_model(client, model, yes=yes)


def _undeploy_model(client: Client, model: str, *, yes: bool) -> None:
    versions = client.versions(model)
    names = [short_name(version) for version in versions]
    what = f"model {model} with {counted(len(names), 'version')}"
    if not yes:
        if not sys.stdin.isatty():
            raise InvalidInputError(
                f"this would delete {what}, and standard input is not a terminal", action="add --yes"
            )
        if not confirm(f"delete {what}" + (f" ({', '.join(names)})?" if names else "?")):
            ERRORS.print("nothing was deleted")
            raise typer.Exit(1)
    client.split_traffic(model, split={})  # the service keeps versions with traffic as long as there are others
    _delete_versions(client, model, names)
    client.delete_model(model)
    OUTPUT.print(f"deleted {what}")


def _delete_versions(client: Client, model: str, versions: Sequence[str]) -> None:
    """Deletes versions, all at the same time, and waits until they are gone."""
    started = [(version, client.delete_version(model, name=version)) for version in versions]
    for version, operation in started:
        ended = wait_for_operation(client, operation, model=model, version=version)
        if "error" in ended:
            raise ModelError(f"version {model}/{version} cannot be deleted: {ended['error']['message']}")
