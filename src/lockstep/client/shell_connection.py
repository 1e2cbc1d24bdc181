"""The client's connection to a shell in a replica."""

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
    """An open shell in a replica. One thread may send while another one reads.

    Args:
        address: the service's address.
        path: the URL path of the replica's ``:exec`` method.
        request: the command to run, and its terminal.

    Raises:
        InvalidInputError: the command is not valid text.
        OSError: the service does not respond.
        websockets.exceptions.InvalidHandshake: the service rejects the request. `InvalidStatus`, a subclass, has its
            ``response``.
    """

    def __init__(self, address: ServiceAddress, *, path: str, request: ShellRequest) -> None:
        try:
            asked = SHELL_REQUEST.dump_json(request).decode()
        except ValueError:  # lone surrogates, from bytes that Python could not decode as text
            raise InvalidInputError("the command is not valid text") from None
        is_tls = address.url.startswith("https:")
        opening = connect(
            "ws" + address.url.removeprefix("http") + path,
            additional_headers={"authorization": f"Bearer {address.token}"},
            ssl=ssl_context(address) if is_tls else None,
            proxy=None if address.is_on_this_machine else True,
            open_timeout=OPEN_TIMEOUT_S,
            compression=None,
            max_size=None,  # frames have a limit of their own
        )
        self._ends = contextlib.ExitStack()
        self._socket: ClientConnection = self._ends.enter_context(opening)
        with contextlib.suppress(ConnectionClosed):  # then `frames` yields nothing
            self._socket.send(asked)

    def send(self, kind: FrameKind, payload: bytes = b"") -> bool:
        """Sends a frame, and returns False if the connection was closed already."""
        try:
            self._socket.send(encode_frame(kind, payload))
        except ConnectionClosed:
            return False
        return True

    def frames(self) -> Iterator[Frame]:
        """Yields the frames from the shell, until the connection ends."""
        reader = FrameReader()
        with contextlib.suppress(ConnectionClosed):
            while True:
                data = self._socket.recv()
                yield from reader.feed(data.encode() if isinstance(data, str) else data)

    def close(self) -> None:
        """Closes the connection, which ends the shell's processes. Idempotent."""
        self._ends.close()
