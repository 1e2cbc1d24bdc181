"""Messages between the processes of a job: one JSON object per line over TCP, limited in size, without pickles."""

from __future__ import annotations

import contextlib
import json
import socket
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, TypeAlias, cast, final

Message: TypeAlias = dict[str, Any]

MAX_MESSAGE_BYTES: Final = 8 * 2**20
"""The maximum size of a message. It is enough to describe a model of about 50 000 variables."""

_RECEIVE_BYTES: Final = 65536


class WireError(Exception):
    """The other side does not speak this protocol: it sent no JSON, no object with a "kind", or too long a line."""


@final
class Connection:
    """One TCP connection that sends and receives messages, and never blocks.

    It is not thread-safe: its owner serializes calls.

    Args:
        sock: a connected socket. It becomes non-blocking, and the connection closes it.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        with contextlib.suppress(OSError):  # the connection may have ended already; reading detects that
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self._received = bytearray()
        self._unsent: deque[memoryview] = deque()
        self.ended = False

    @property
    def remote_host(self) -> str:
        """The other side's IP address; "" once the connection has ended."""
        return _host(self._sock.getpeername) if self._sock.fileno() >= 0 else ""

    @property
    def local_host(self) -> str:
        """This side's IP address, at which the other side reaches this machine; "" once the connection has ended."""
        return _host(self._sock.getsockname) if self._sock.fileno() >= 0 else ""

    @property
    def wants_to_send(self) -> bool:
        """Whether a part of a message has not been sent yet."""
        return bool(self._unsent) and not self.ended

    def fileno(self) -> int:
        """Returns the socket's file descriptor, for selectors; -1 once the socket is closed."""
        return self._sock.fileno()

    def send(self, message: Mapping[str, Any]) -> None:
        """Sends a message, or as much of it as is possible without blocking. `flush` sends the rest.

        Args:
            message: a JSON object with a "kind".
        """
        self._unsent.append(memoryview(json.dumps(message).encode() + b"\n"))
        self.flush()

    def flush(self) -> None:
        """Sends as much of the unsent messages as is possible without blocking."""
        while self._unsent and not self.ended:
            try:
                num_sent = self._sock.send(self._unsent[0])
            except BlockingIOError:
                return
            except OSError:
                self._unsent.clear()  # reading detects the end, after the other side's last messages
                return
            if num_sent == len(self._unsent[0]):
                self._unsent.popleft()
            else:
                self._unsent[0] = self._unsent[0][num_sent:]

    def receive(self) -> list[Message]:
        """Reads the bytes that have arrived. Sets `ended` once the other side has closed the connection.

        Returns:
            The complete messages, in their order.

        Raises:
            WireError: the other side sent something that is not a message.
        """
        while not self.ended:
            try:
                part = self._sock.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                break
            except OSError:
                part = b""
            if not part:
                self.ended = True
                break
            self._received += part
            if len(self._received) > MAX_MESSAGE_BYTES and b"\n" not in self._received:
                raise WireError(f"a message of more than {MAX_MESSAGE_BYTES} bytes")
        *lines, rest = self._received.split(b"\n")
        self._received = bytearray(rest)
        return [_parse(line) for line in lines]

    def receive_one(self) -> Message | None:
        """Reads one message and leaves the bytes behind it unread, for a connection that then carries other bytes.

        Returns:
            The message; None if it is not complete yet, or if the other side has closed the connection (`ended`).

        Raises:
            WireError: the other side sent something that is not a message.
        """
        while not self.ended:
            try:
                ahead = self._sock.recv(_RECEIVE_BYTES, socket.MSG_PEEK)
                end = ahead.find(b"\n") + 1
                taken = self._sock.recv(end or len(ahead))
            except BlockingIOError:
                return None
            except OSError:
                taken, end = b"", 0
            self.ended = not taken
            self._received += taken
            if end:
                line, self._received = bytes(self._received), bytearray()
                return _parse(line)
            if len(self._received) > _RECEIVE_BYTES:
                raise WireError(f"a first message of more than {_RECEIVE_BYTES} bytes")
        return None

    def detach(self) -> socket.socket:
        """Returns the socket, still open. The caller owns it from then on."""
        return self._sock

    def close(self) -> None:
        """Closes the connection. A second call does nothing."""
        self.ended = True
        with contextlib.suppress(OSError):
            self._sock.close()


def _parse(line: bytes | bytearray) -> Message:
    try:
        value = json.loads(line)
    except ValueError:
        raise WireError(f"not JSON: {bytes(line[:40])!r}") from None
    if not isinstance(value, dict) or not isinstance(cast("Message", value).get("kind"), str):
        raise WireError(f"not a message: {bytes(line[:40])!r}")
    return cast("Message", value)


def _host(ask: Any) -> str:
    try:
        return str(ask()[0])
    except OSError:
        return ""


def split_address(address: str) -> tuple[str, int]:
    """Splits "host:port", and removes the brackets of an IPv6 address. The port must be a number."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)
