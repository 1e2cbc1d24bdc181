"""An application of ASGI without a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, final

from starlette.types import ASGIApp, Message


@asynccontextmanager
async def running(app: ASGIApp) -> AsyncIterator[None]:
    """Starts and ends an application as a server of ASGI does."""
    to_app: asyncio.Queue[Message] = asyncio.Queue()
    from_app: asyncio.Queue[Message] = asyncio.Queue()
    life = asyncio.ensure_future(app({"type": "lifespan"}, to_app.get, from_app.put))
    await to_app.put({"type": "lifespan.startup"})
    assert (await from_app.get())["type"] == "lifespan.startup.complete"
    yield
    await to_app.put({"type": "lifespan.shutdown"})
    assert (await from_app.get())["type"] == "lifespan.shutdown.complete"
    await life


@final
class Poster:
    """Sends bodies to an application, one after the other, without a client's checks. Use it as a context manager.

    Args:
        app: the application.
        path: the path that takes the bodies.
        token: the bearer token of the requests.
    """

    def __init__(self, app: ASGIApp, *, path: str, token: str) -> None:
        self._app = app
        headers = [(b"authorization", f"Bearer {token}".encode())]
        self._scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
        self._runner = asyncio.Runner()
        self._life = running(app)

    def __enter__(self) -> Poster:
        self._runner.run(self._life.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._life.__aexit__(None, None, None))
        self._runner.close()

    def post(self, body: bytes) -> tuple[int, bytes]:
        """Returns the status and the body of the answer."""
        return self._runner.run(self._post(body))

    async def _post(self, body: bytes) -> tuple[int, bytes]:
        sent: list[dict[str, Any]] = []
        is_over = asyncio.Event()
        incoming: list[Message] = [{"type": "http.request", "body": body}]

        async def receive() -> Message:
            if incoming:
                return incoming.pop()
            await is_over.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        await self._app(dict(self._scope), receive, send)
        is_over.set()
        start, *parts = sent
        return start["status"], b"".join(part["body"] for part in parts)
