"""The gate before all routes, for HTTP and WebSockets: it refuses requests without a valid key."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Final, final

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lockstep.errors import AuthenticationError, LockstepError
from lockstep.jobs.security.access import Principal
from lockstep.service.api.access import POLICY_VIOLATION, PUBLIC_PATHS
from lockstep.service.api.sockets import while_valid
from lockstep.service.security.keys import Authenticator
from lockstep.service.threads import Pool, run_in

HEADERS: Final = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)
"""Default headers of every response: they restrict what a browser may do with private JSON."""

TLS_HEADERS: Final = (*HEADERS, (b"strict-transport-security", b"max-age=31536000"))
"""The same, for responses over TLS."""


@final
class Gate:
    """An ASGI middleware that authenticates every request, except those to public paths.

    Args:
        app: the application behind the gate.
        authenticator: the authenticator of requests.
        answer: returns the response for an error and the `path` of its request.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        authenticator: Authenticator,
        answer: Callable[..., Response],
    ) -> None:
        self._app = app
        self._authenticator = authenticator
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one connection."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        if scope["type"] == "http":
            send = _with_headers(send, is_tls=scope["scheme"] == "https")
        if scope["path"] in PUBLIC_PATHS:
            await self._app(scope, receive, send)
            return
        HTTPConnection(scope).state.arrived_s = time.perf_counter()  # what a caller waits for begins here
        authorization, is_here = Headers(scope=scope).get("authorization", ""), is_on_this_machine(scope)

        async def authenticate() -> Principal:
            home = self._authenticator.authenticate_home(authorization, is_on_this_machine=is_here)
            if home is not None:
                return home
            return await run_in(
                Pool.SIGN_IN, self._authenticator.authenticate, authorization, is_on_this_machine=is_here
            )

        try:
            HTTPConnection(scope).state.principal = await authenticate()
        except LockstepError as error:
            await self._refuse(error, scope, receive, send)
            return
        if scope["type"] == "http":
            await self._app(scope, receive, send)
            return
        async with while_valid(receive, check=authenticate) as receive_while_valid:
            await self._app(scope, receive_while_valid, send)

    async def _refuse(self, error: LockstepError, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": ""})
            return
        response = self._answer(error, path=scope["path"])
        if isinstance(error, AuthenticationError):
            response.headers["www-authenticate"] = 'Bearer realm="lockstep"'
        await response(scope, receive, send)


def _with_headers(send: Send, *, is_tls: bool) -> Send:
    defaults = TLS_HEADERS if is_tls else HEADERS

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            names = {name for name, _ in headers}
            message["headers"] = headers + [header for header in defaults if header[0] not in names]
        await send(message)

    return send_with_headers


def is_on_this_machine(scope: Scope) -> bool:
    """Whether a request comes from the service's own machine: over loopback, or from the address it was sent to."""
    client, server = scope.get("client"), scope.get("server")
    if client is None:
        return False
    is_loopback = _is_loopback(client[0])
    return is_loopback is not None and (is_loopback or (server is not None and server[0] == client[0]))


@lru_cache(maxsize=1024)
def _is_loopback(host: str) -> bool | None:
    """Returns whether a host is this machine's loopback interface; None if it is no IP address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return None
