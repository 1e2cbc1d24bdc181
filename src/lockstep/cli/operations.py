"""Waits for operations on versions, and prints what the versions wait for meanwhile."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from lockstep.cli.console import ERRORS
from lockstep.client import Client
from lockstep.errors import InvalidInputError, NotFoundError, UnavailableError

TIMEOUT_S: Final = 180.0
POLL_S: Final = 0.1
VERSION_S: Final = 1.0
"""The interval between requests for the version's state, in seconds."""


def short_name(resource: Mapping[str, Any]) -> str:
    """Returns the last part of the full name of a model, version or operation."""
    return str(resource["name"]).rpartition("/")[2]


def waiting_for(version: Mapping[str, Any]) -> str:
    """Returns what a version's next prediction server waits for; an empty text if for nothing."""
    return version.get("lockstep", {}).get("waitingFor", "")


def split_version(name: str) -> tuple[str, str | None]:
    """Returns the model and the version that ``MODEL[/VERSION]`` names; the version is None if it is left out.

    Raises:
        InvalidInputError: the text has another form.
    """
    model, slash, version = name.partition("/")
    if not model or bool(slash) != bool(version) or "/" in version:
        raise InvalidInputError("not the name of a model or version", received=name, allowed="MODEL or MODEL/VERSION")
    return model, version or None


def wait_for_operation(client: Client, operation: Mapping[str, Any], *, model: str, version: str) -> Mapping[str, Any]:
    """Waits until an operation on a version is done, and returns it. Prints each new state of the version.

    Args:
        client: the client of the service.
        operation: the operation, as the service returned it.
        model: the model's name.
        version: the version's name.

    Raises:
        UnavailableError: the operation was not done within `TIMEOUT_S`. It continues in the service.
    """
    deadline = time.monotonic() + TIMEOUT_S
    shown, next_look = "", time.monotonic()
    while not operation.get("done"):
        now = time.monotonic()
        if now >= next_look:
            next_look = now + VERSION_S
            shown = _print_state(client, model, version, shown=shown)
        if now > deadline:
            raise UnavailableError(
                f"the operation on {model}/{version} was not done within {TIMEOUT_S:.0f} s",
                action=f"it continues: see `lockstep models describe {model}/{version}`",
            )
        time.sleep(POLL_S)
        operation = client.operation(operation["name"])
    return operation


def _print_state(client: Client, model: str, version: str, *, shown: str) -> str:
    """Prints the state of a version if it is not what was shown last, and returns it."""
    try:
        found = client.version(model, name=version)
    except NotFoundError:  # it has just been deleted
        return shown
    waits = waiting_for(found)
    text = f"{model}/{version} is {found['state']}" + (f": {waits}" if waits else "")
    if text != shown:
        ERRORS.print(f"-- {text}", style="dim")
    return text
