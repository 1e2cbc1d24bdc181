"""Closes a WebSocket when the key that opened it is no longer valid."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, final

from starlette.types import Message, Receive

from lockstep.errors import AuthenticationError, LockstepError
from lockstep.service.api.access import POLICY_VIOLATION

CHECK_INTERVAL_S: Final = 10.0
"""The maximum time that a WebSocket stays open after its key was revoked or has expired."""


@contextlib.asynccontextmanager
async def while_valid(receive: Receive, *, check: Callable[[], Awaitable[object]]) -> AsyncIterator[Receive]:
    """Yields a `receive` callable for a WebSocket's application. It reports a disconnect once the key is not valid.

    Args:
        receive: the server's `receive` callable.
        check: checks the key. It raises `AuthenticationError` if the key is not valid, and another `LockstepError` if
            the key cannot be checked.
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
                continue  # the database does not answer: that is no reason to close

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
        receive: the server's `receive` callable.

    Attributes:
        over: set when the key is not valid any more.
    """

    def __init__(self, receive: Receive) -> None:
        self.over = asyncio.Event()
        self._receive = receive
        self._pending: asyncio.Future[Message] | None = None

    async def receive(self) -> Message:
        # The pending call is kept if the application cancels its wait, so no message is lost between two calls.
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
