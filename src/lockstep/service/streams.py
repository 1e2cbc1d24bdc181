"""Responses that are sent piece by piece, in threads of their own, however slow their receivers are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import BinaryIO, Final, final
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from lockstep.errors import OverloadedError
from lockstep.service.threads import Pool, run_in

MAX_STREAMS: Final = 64
"""How many responses may be under way at once. Each holds an open object and a piece of it."""
PIECE_BYTES: Final = 1 << 20
SEND_S: Final = 60.0
"""How long a receiver may take for a piece, in seconds. Then the connection is closed."""


@final
class Streams:
    """Limits the responses that are under way in a service.

    Args:
        max_streams: how many there may be at once.
    """

    def __init__(self, *, max_streams: int = MAX_STREAMS) -> None:
        self._max_streams = max_streams
        self._num_open = 0

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Counts a response in the block. Only for the thread of the event loop.

        Raises:
            OverloadedError: If too many are under way.
        """
        if self._num_open >= self._max_streams:
            raise OverloadedError("too many downloads at once", allowed=str(self._max_streams), retry_after_s=1.0)
        self._num_open += 1
        try:
            yield
        finally:
            self._num_open -= 1


@final
class StreamedBody(Response):
    """A response whose content is read piece by piece, each when the one before was sent.

    If the receiver takes no piece for `SEND_S`, or if the content is shorter than its ``Content-Length``, the
    connection is closed, so that the receiver notices that something is missing.

    Args:
        read: returns the next piece, and ``b""`` at the end. Blocks; runs in a thread, one call at a time.
        close: releases what is read. It is called once, also if nothing was read.
        streams: the limits of the service.
        headers: the headers.
        media_type: the type of the content.
    """

    def __init__(
        self,
        read: Callable[[], bytes],
        *,
        close: Callable[[], None],
        streams: Streams,
        headers: Mapping[str, str],
        media_type: str = "application/octet-stream",
    ) -> None:
        super().__init__(media_type=media_type)
        self._read = read
        self._close = close
        self._streams = streams
        self._sent_headers = dict(headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the response.

        Raises:
            OverloadedError: If too many are under way.
        """
        try:
            with self._streams.opened():
                body = StreamingResponse(self._pieces(), headers=self._sent_headers, media_type=self.media_type)
                await body(scope, receive, sends_soon(send))
        except TimeoutError:
            return  # without the end of the response: the server then closes the connection
        finally:
            self._close()

    async def _pieces(self) -> AsyncIterator[bytes]:
        while piece := await run_in(Pool.DOWNLOAD, self._read):
            yield piece


def sends_soon(send: Send) -> Send:
    """Returns what sends a message, and raises `TimeoutError` if its receiver takes nothing for `SEND_S`."""

    async def send_soon(message: Message) -> None:
        async with asyncio.timeout(SEND_S):
            await send(message)

    return send_soon


def stream_file(file: BinaryIO, *, name: str, size_bytes: int, streams: Streams) -> StreamedBody:
    """Returns a response with the content of an open file, as a download.

    Args:
        file: the file, which the response closes.
        name: the name that a browser saves it as.
        size_bytes: how many bytes of the file are sent. More, which may be added meanwhile, are left out.
        streams: the limits of the service.
    """
    num_left = size_bytes

    def read() -> bytes:
        nonlocal num_left
        piece = file.read(min(PIECE_BYTES, num_left))
        num_left -= len(piece)
        return piece

    headers = {"content-length": str(size_bytes), "content-disposition": attachment(name)}
    return StreamedBody(read, close=file.close, streams=streams, headers=headers)


def attachment(name: str) -> str:
    """Returns the ``Content-Disposition`` of a download (RFC 6266), for any name."""
    quoted = quote(name, safe="")
    return f'attachment; filename="{name}"' if quoted == name else f"attachment; filename*=utf-8''{quoted}"
