"""A shell in a replica, as the client holds it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final, final

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from lockstep.client.addresses import ServiceAddress
from lockstep.client.tls import ssl_context
from lockstep.errors import InvalidInputError
from lockstep.jobs.running.shell_frames import SHELL_REQUEST, Frame, FrameKind, FrameReader, ShellRequest, encode_frame

OPEN_TIMEOUT_S: Final = 30.0


@final
class ShellConnection:
    """An open shell. One thread may send while another reads.

    Args:
        address: where the service is.
        path: the replica's path there.
        request: what to run.

    Raises:
        InvalidInputError: the command is no text.
        OSError: the service does not answer.
        websockets.exceptions.InvalidHandshake: it refused; ``response`` has its answer.
    """

    def __init__(self, address: ServiceAddress, *, path: str, request: ShellRequest) -> None:
        try:
            asked = SHELL_REQUEST.dump_json(request).decode()
        except ValueError:  # of bytes that Python could not read as text
            raise InvalidInputError("the command has characters that are no text") from None
        is_tls = address.url.startswith("https:")
        opening = connect(
            "ws" + address.url.removeprefix("http") + path,
            additional_headers={"authorization": f"Bearer {address.token}"},
            ssl=ssl_context(address) if is_tls else None,
            proxy=None if address.is_on_this_machine else True,
            open_timeout=OPEN_TIMEOUT_S,
            compression=None,
            max_size=None,  # a frame has its own bound
        )
        self._ends = contextlib.ExitStack()
        self._socket: ClientConnection = self._ends.enter_context(opening)
        with contextlib.suppress(ConnectionClosed):  # then `frames` yields none
            self._socket.send(asked)

    def send(self, kind: FrameKind, payload: bytes = b"") -> bool:
        """Sends a frame; returns whether the shell was still there."""
        try:
            self._socket.send(encode_frame(kind, payload))
        except ConnectionClosed:
            return False
        return True

    def frames(self) -> Iterator[Frame]:
        """Yields what the shell sends, until it is over."""
        reader = FrameReader()
        with contextlib.suppress(ConnectionClosed):
            while True:
                data = self._socket.recv()
                yield from reader.feed(data.encode() if isinstance(data, str) else data)

    def close(self) -> None:
        """Hangs up: what runs there is ended. Idempotent."""
        self._ends.close()
