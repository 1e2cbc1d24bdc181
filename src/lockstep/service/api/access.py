"""Authorization of routes: each route declares the scope that it needs. A route without a scope refuses everybody."""

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
"""The close code of a WebSocket that is refused."""

_SCOPE: Final = "lockstep_scope"

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


def requires_scope(scope: Scope) -> Callable[[Endpoint], Endpoint]:
    """Declares the scope that a key must have for a route. This decorator goes below the route's path.

    A route with ``{project}`` in its path is for keys of that project or of all projects. A route without it that needs
    an operator is for keys of all projects. A route for callers has ``{model}`` in its path, and maybe ``{version}``.
    """

    def declare(endpoint: Endpoint) -> Endpoint:
        setattr(endpoint, _SCOPE, scope)
        return endpoint

    return declare


def required_scope(endpoint: Callable[..., Any]) -> Scope | None:
    """Returns the scope that a route declares; None if it declares none."""
    return getattr(endpoint, _SCOPE, None)


def principal_of(connection: HTTPConnection) -> Principal:
    """Returns the principal of a request."""
    return connection.state.principal


async def guard(connection: HTTPConnection) -> None:
    """Checks that a request's key may use the route in its project. Runs before the request's content is read.

    Raises:
        NotFoundError: If the key is not valid for the project of the request, or a caller's key not for its model.
        PermissionDeniedError: If the key's scope does not allow the route.
        WebSocketException: In either case, if the request opens a WebSocket.
    """
    if connection.scope["path"] in PUBLIC_PATHS:
        return
    needed = required_scope(connection.scope["endpoint"])
    try:
        if needed is None:
            raise PermissionDeniedError("this route declares no scope")
        named = {what: connection.path_params.get(what) for what in ("project", "model", "version")}
        check_access(principal_of(connection), needed=needed, **named)
    except LockstepError as error:
        if connection.scope["type"] == "websocket":  # a WebSocket has no response body for an error
            raise WebSocketException(POLICY_VIOLATION) from error
        raise


async def _principal(connection: HTTPConnection) -> Principal:
    # A coroutine, because FastAPI passes plain functions to a thread.
    return principal_of(connection)


RequestPrincipal = Annotated[Principal, Depends(_principal)]
"""The type of a route's parameter that receives the principal of the request."""
