"""A WebSocket is open for as long as the key that opened it is valid."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, final

from starlette.types import Message, Receive

from lockstep.errors import AuthenticationError, LockstepError
from lockstep.service.api.access import POLICY_VIOLATION

CHECK_INTERVAL_S: Final = 10.0
"""How long a WebSocket goes on at the most with a key that was revoked or has expired."""


@contextlib.asynccontextmanager
async def while_valid(receive: Receive, *, check: Callable[[], Awaitable[object]]) -> AsyncIterator[Receive]:
    """Gives what a WebSocket's application receives by; it hears that the client has gone when the key is over.

    Args:
        receive: what the server gives.
        check: looks whether the key is valid, and raises where it is not, or where nobody can say.
    """
    receiver = _Receiver(receive)

    async def watch() -> None:
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            try:
                await check()
            except AuthenticationError:
                receiver.over.set()
                return
            except LockstepError:
                continue  # the database does not answer: that ends nothing

    watching = asyncio.ensure_future(watch())
    try:
        yield receiver.receive
    finally:
        watching.cancel()
        receiver.close()


@final
class _Receiver:
    """Waits for the client's next message, or for the end of its key.

    Args:
        receive: what the server gives.
    """

    def __init__(self, receive: Receive) -> None:
        self.over = asyncio.Event()
        self._receive = receive
        self._pending: asyncio.Future[Message] | None = None

    async def receive(self) -> Message:
        # Kept where the application gives up waiting: no message is lost between two of its calls.
        pending = self._pending = self._pending or asyncio.ensure_future(self._receive())
        over = asyncio.ensure_future(self.over.wait())
        try:
            await asyncio.wait((pending, over), return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()
        if self.over.is_set():
            return {"type": "websocket.disconnect", "code": POLICY_VIOLATION, "reason": ""}
        self._pending = None
        return pending.result()

    def close(self) -> None:
        if self._pending is not None:
            self._pending.cancel()
