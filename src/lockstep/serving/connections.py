"""uvicorn's HTTP protocol with a bound on how long a request's headers may take to come.

uvicorn bounds how long a connection idles between two requests, but not the time before the first one, nor a request
that stops in its headers: whoever opens enough such connections would keep all others out.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, final

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADERS_TIMEOUT_S: Final = 30.0
"""How long a connection may take to send the headers of a request, from its first byte, or from the connection's
beginning for the first request."""


@final
class TimedProtocol(H11Protocol):
    """HTTP/1.1 as uvicorn has it; a connection is closed where headers do not come within `HEADERS_TIMEOUT_S`.

    For ``uvicorn.Config(http=TimedProtocol)``.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._headers_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins to wait for the first request."""
        super().connection_made(transport)
        self._wait_for_headers()

    def data_received(self, data: bytes) -> None:
        """Takes what has come; ends the wait where a request's headers are complete, and begins one for the next."""
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._end_wait()
        elif self._headers_timer is None and (self.cycle is None or self.cycle.response_complete):
            self._wait_for_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the wait."""
        self._end_wait()
        super().connection_lost(exc)

    def _wait_for_headers(self) -> None:
        self._headers_timer = self.loop.call_later(HEADERS_TIMEOUT_S, self._give_up)

    def _end_wait(self) -> None:
        if self._headers_timer is not None:
            self._headers_timer.cancel()
            self._headers_timer = None

    def _give_up(self) -> None:
        self._headers_timer = None
        # A WebSocket has taken the connection over by the same headers, and bounds it by itself.
        if not self.transport.is_closing() and self.transport.get_protocol() is self:
            self.transport.abort()
