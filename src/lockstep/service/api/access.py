"""Who may use a route: each says it beside its path, and one that does not is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, TypeVar

from fastapi import Depends, WebSocketException
from starlette.requests import HTTPConnection

from lockstep.errors import LockstepError, PermissionDeniedError
from lockstep.jobs.security.access import Principal, Scope, check_access

PUBLIC_PATHS: Final = frozenset({"/healthz"})
"""Paths that need no key."""

POLICY_VIOLATION: Final = 1008
"""The code with which a WebSocket is closed that is not let in."""

_SCOPE: Final = "lockstep_scope"

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


def needs(scope: Scope) -> Callable[[Endpoint], Endpoint]:
    """Declares the scope that a key must have for a route; stands below the route's path.

    A route whose path has ``{project}`` is for keys of that project or of all of them. One without it that needs an
    operator is for keys of all projects.
    """

    def declare(endpoint: Endpoint) -> Endpoint:
        setattr(endpoint, _SCOPE, scope)
        return endpoint

    return declare


def scope_of(endpoint: Callable[..., Any]) -> Scope | None:
    """Returns the scope that a route declares; None if it declares none."""
    return getattr(endpoint, _SCOPE, None)


def principal_of(connection: HTTPConnection) -> Principal:
    """Returns who a request comes from."""
    return connection.state.principal


async def guard(connection: HTTPConnection) -> None:
    """Lets a request go on to its route, or refuses it; runs before anything of the request is looked at.

    Raises:
        NotFoundError: it is about a project that is not the key's.
        PermissionDeniedError: the key may not do this.
        WebSocketException: either of them, for a WebSocket.
    """
    if connection.scope["path"] in PUBLIC_PATHS:
        return
    needed = scope_of(connection.scope["endpoint"])
    try:
        if needed is None:
            raise PermissionDeniedError("this route is nobody's: it does not say who may use it")
        check_access(principal_of(connection), needed=needed, project=connection.path_params.get("project"))
    except LockstepError as error:
        if connection.scope["type"] == "websocket":  # which has no answer to write an error into
            raise WebSocketException(POLICY_VIOLATION) from error
        raise


By = Annotated[Principal, Depends(principal_of)]
"""A route's parameter: who the request comes from."""
