"""Waits for operations on versions, and prints what the versions wait for meanwhile."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from lockstep.cli.console import ERRORS
from lockstep.cli.times import read_duration_s
from lockstep.client.following import AWAY_S
from lockstep.errors import InvalidInputError, NotFoundError, UnavailableError

if TYPE_CHECKING:
    from lockstep.client import Client

POLL_S: Final = 0.1
MAX_POLL_S: Final = 1.0
"""The interval between requests for the operation grows with the wait, from `POLL_S` to this, in seconds."""
VERSION_S: Final = 1.0
"""The interval between requests for the version's state, in seconds."""

TimeoutOption = Annotated[
    str | None,
    typer.Option(
        "--timeout",
        metavar="DURATION",
        help="How long to wait at most, such as 90s, 15m or 2h. The service goes on after that. Default: until it is "
        "done.",
    ),
]


def timeout_of(text: str | None) -> float | None:
    """Returns the value of ``--timeout`` in seconds; None if it is not given.

    Raises:
        InvalidInputError: the text is not a duration.
    """
    return None if text is None else read_duration_s(text, flag="--timeout")


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


def newest_version(client: Client, model: str) -> str:
    """Returns the name of a model's newest version.

    Raises:
        InvalidInputError: the model has no version.
    """
    versions = client.versions(model, limit=1)
    if not versions:
        raise InvalidInputError(f"model {model} has no version", action="see `lockstep deploy`")
    return short_name(versions[0])


def wait_for_operation(
    client: Client,
    operation: Mapping[str, Any],
    *,
    model: str,
    version: str,
    timeout_s: float | None = None,
    afterwards: str = "",
) -> Mapping[str, Any]:
    """Waits until an operation on a version is done, and returns it. Prints what the version waits for as it changes.

    The service ends each operation, after as long as machines and servers may take. It may be restarted meanwhile.

    Args:
        client: the client of the service.
        operation: the operation, as the service returned it.
        model: the model's name.
        version: the version's name.
        timeout_s: how long to wait at most, in seconds; None for no limit.
        afterwards: what the user has to do after the operation if it takes longer than that; empty if nothing.

    Raises:
        UnavailableError: the operation was not done within `timeout_s`, and continues in the service; or the service
            did not respond for longer than `AWAY_S`.
    """
    began = time.monotonic()
    shown, next_look = "", began
    away_since: float | None = None
    while not operation.get("done"):
        now = time.monotonic()
        try:
            if now >= next_look:
                next_look = now + VERSION_S
                shown = _print_state(client, model, version, shown=shown)
            time.sleep(min(MAX_POLL_S, max(POLL_S, (now - began) / 20)))
            operation = client.operation(operation["name"])
            away_since = None
        except UnavailableError:
            away_since = now if away_since is None else away_since
            if now - away_since > AWAY_S:
                raise
            time.sleep(POLL_S)
            with contextlib.suppress(UnavailableError):
                client.find_again()
        is_late = timeout_s is not None and time.monotonic() - began >= timeout_s
        if is_late and not operation.get("done"):
            raise UnavailableError(
                f"the operation was not done within {timeout_s:.0f} s: {shown or f'{model}/{version}'}",
                action=f"it continues, see `lockstep models describe {model}/{version}`"
                + (f"; {afterwards}" if afterwards else ""),
            )
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
