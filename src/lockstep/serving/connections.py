"""uvicorn's HTTP protocol with limits for the headers of a request.

uvicorn limits how long a connection is idle between two requests. It limits neither the time before the first request
nor a request that stops within its headers. With enough such connections, a client could block all others. Its parser
httptools does not limit the size of headers either.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADERS_TIMEOUT_S: Final = 30.0
"""How long a connection may take to send the headers of a request, measured from the request's first byte; for the
first request, from the start of the connection."""
MAX_HEADERS_BYTES: Final = 64 * 1024
"""The approximate maximum size of a request's headers, in bytes."""


@final
class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 protocol, which closes a connection if headers do not arrive in time, or are too large.

    Use it as ``uvicorn.Config(http=LimitedProtocol)``.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._headers_timer: asyncio.TimerHandle | None = None
        self._num_headers_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts the timer for the first request."""
        super().connection_made(transport)
        self._wait_for_headers()

    def data_received(self, data: bytes) -> None:
        """Processes data. Stops the timer when a request's headers are complete, and starts it for the next request."""
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._end_wait()
        elif self.cycle is None or self.cycle.response_complete:
            if self._headers_timer is None:
                self._wait_for_headers()
            self._num_headers_bytes += len(data)
            if self._num_headers_bytes > MAX_HEADERS_BYTES and not self.transport.is_closing():
                self._end_wait()
                self.send_400_response(f"The headers are larger than {MAX_HEADERS_BYTES} bytes.")

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops the timer."""
        self._end_wait()
        super().connection_lost(exc)

    def _wait_for_headers(self) -> None:
        self._headers_timer = self.loop.call_later(HEADERS_TIMEOUT_S, self._give_up)
        self._num_headers_bytes = 0

    def _end_wait(self) -> None:
        if self._headers_timer is not None:
            self._headers_timer.cancel()
            self._headers_timer = None

    def _give_up(self) -> None:
        self._headers_timer = None
        # If a WebSocket has taken over the connection, it has its own timeout.
        if not self.transport.is_closing() and self.transport.get_protocol() is self:
            self.transport.abort()
