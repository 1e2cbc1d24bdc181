"""``lockstep undeploy``."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from lockstep.cli.answers import Answer, answers
from lockstep.cli.completing import complete_version
from lockstep.cli.console import DEFAULT_PROJECT, ERRORS, OUTPUT, ProjectOption, confirm, connect
from lockstep.cli.operations import TimeoutOption, short_name, split_version, timeout_of, wait_for_operation
from lockstep.errors import ExitCode, InvalidInputError, ModelError, counted

if TYPE_CHECKING:
    from lockstep.client import Client


@answers("DeletedModelForm")
def undeploy(
    name: Annotated[
        str,
        typer.Argument(
            metavar="MODEL[/VERSION]",
            help="The version; a model with all its versions, asks first.",
            autocompletion=complete_version,
        ),
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    timeout: TimeoutOption = None,
    project: ProjectOption = DEFAULT_PROJECT,
) -> Answer:
    """Delete a version, or a model with all its versions, and wait until the prediction servers have ended.

    The model files that were deployed are kept.
    """
    model, version = split_version(name)
    timeout_s = timeout_of(timeout)
    with connect(project) as client:
        if version is not None:
            _delete_versions(client, model, [version], timeout_s=timeout_s)
            what, names = f"version {model}/{version}", [version]
        else:
            what, names = _undeploy_model(client, model, yes=yes, timeout_s=timeout_s)
    return Answer(show=lambda: OUTPUT.print(f"deleted {what}"), document={"model": model, "versions": names})


def _undeploy_model(client: Client, model: str, *, yes: bool, timeout_s: float | None) -> tuple[str, list[str]]:
    """Deletes a model with its versions, unless the user refuses; returns what that was, and the versions' names."""
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
            raise typer.Exit(ExitCode.NO)
    client.split_traffic(model, split={})  # the service keeps versions with traffic as long as there are others
    _delete_versions(client, model, names, timeout_s=timeout_s)
    client.delete_model(model)
    return what, names


def _delete_versions(client: Client, model: str, versions: Sequence[str], *, timeout_s: float | None) -> None:
    """Deletes versions, all at the same time, and waits until they are gone."""
    began = time.monotonic()
    started = [(version, client.delete_version(model, name=version)) for version in versions]
    for version, operation in started:
        left_s = None if timeout_s is None else max(0.0, timeout_s - (time.monotonic() - began))
        ended = wait_for_operation(client, operation, model=model, version=version, timeout_s=left_s)
        if "error" in ended:
            raise ModelError(f"version {model}/{version} cannot be deleted: {ended['error']['message']}")
