"""The whole of what the service serves: the REST interface, and the console on all other paths."""

from __future__ import annotations

from typing import Final, final

from starlette.types import ASGIApp, Receive, Scope, Send

from lockstep.service.api.app import PREDICTION_ROUTERS, create_app
from lockstep.service.api.direct import DirectRoutes
from lockstep.service.console.app import Console
from lockstep.service.context import ServiceContext
from lockstep.service.security.keys import Authenticator

API_PATHS: Final = ("v1", "ui", "healthz", "metrics")
"""The first parts of the paths of the REST interface."""


@final
class Front:
    """The ASGI application of the service.

    Args:
        context: the parts of the service.
    """

    def __init__(self, context: ServiceContext) -> None:
        self.api = create_app(context)
        authenticator = Authenticator(home_token=context.token, keys=context.keys)
        self._served: ASGIApp = DirectRoutes(self.api, routers=PREDICTION_ROUTERS, authenticator=authenticator)
        self._console: ASGIApp = Console(context, api=self.api).app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one connection, or the start and the end of the server."""
        is_page = scope["type"] == "http" and scope["path"].removeprefix("/").partition("/")[0] not in API_PATHS
        await (self._console if is_page else self._served)(scope, receive, send)
