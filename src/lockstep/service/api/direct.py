"""Serves requests for predictions without the parts of FastAPI that they do not need.

FastAPI passes each request through seven layers of its own, and looks for its route in a tree. For a request that is
only sent on to a prediction server, that is a third of the processor time. The same functions serve the same paths in
the application itself, where the walks over all routes find them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from fastapi import APIRouter, FastAPI
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.routing import compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from lockstep.service.api.answers import answer
from lockstep.service.api.gate import Gate
from lockstep.service.api.routes import DeclaredRoute, Handler, direct_handler
from lockstep.service.security.keys import Authenticator

METHOD: Final = "POST"
"""The method of all routes that are served so."""


@final
@dataclass(frozen=True, kw_only=True)
class _DirectRoute:
    """A route.

    Attributes:
        pattern: matches its whole path.
        endpoint: the function of the route, which declares its scope.
        handler: answers its requests.
    """

    pattern: re.Pattern[str]
    endpoint: Callable[..., Any]
    handler: Handler


@final
class DirectRoutes:
    """An ASGI application that answers some requests itself, and passes all others on.

    Args:
        app: the application, which has the routes too.
        routers: the routers whose directly called routes are answered here, by their prefixes.
        authenticator: the authenticator of requests.
    """

    def __init__(self, app: FastAPI, *, routers: Mapping[str, APIRouter], authenticator: Authenticator) -> None:
        self._app = app
        self._routes: Sequence[_DirectRoute] = tuple(_direct_routes(routers))
        guarded = ExceptionMiddleware(self._serve, handlers=app.exception_handlers)
        self._gate: ASGIApp = Gate(guarded, authenticator=authenticator, answer=answer)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one connection, or the start and the end of the server."""
        if scope["type"] == "http" and scope["method"] == METHOD:
            for route in self._routes:
                if (found := route.pattern.match(scope["path"])) is not None:
                    scope.update(app=self._app, endpoint=route.endpoint, route=route, path_params=found.groupdict())
                    await self._gate(scope, receive, send)
                    return
        await self._app(scope, receive, send)

    @staticmethod
    async def _serve(scope: Scope, receive: Receive, send: Send) -> None:
        response = await scope["route"].handler(Request(scope, receive, send))
        await response(scope, receive, send)


def _direct_routes(routers: Mapping[str, APIRouter]) -> Iterator[_DirectRoute]:
    for prefix, router in routers.items():
        for route in router.routes:
            assert isinstance(route, DeclaredRoute)
            handler = direct_handler(route.endpoint)
            if handler is not None and route.methods == {METHOD}:
                pattern, _, _ = compile_path(f"{prefix}{route.path}")
                yield _DirectRoute(pattern=pattern, endpoint=route.endpoint, handler=handler)
