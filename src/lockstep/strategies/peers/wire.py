"""Messages between the processes of a job: one JSON object a line over TCP, bounded in size, without pickles."""

from __future__ import annotations

import contextlib
import json
import socket
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, TypeAlias, cast, final

Message: TypeAlias = dict[str, Any]

MAX_MESSAGE_BYTES: Final = 8 * 2**20
"""A model of some 50 000 variables is described in this."""

_RECEIVE_BYTES: Final = 65536


class WireError(Exception):
    """The other side does not speak this protocol: not JSON, not an object with a kind, or too long a line."""


@final
class Connection:
    """One TCP connection that carries messages, without ever blocking.

    Not safe for several threads at once: its owner serialises calls.

    Args:
        sock: a connected socket; it becomes non-blocking, and the connection's to close.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        with contextlib.suppress(OSError):  # it may have ended already: found in reading
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
        """This side's IP address: where the other one reaches this machine."""
        return _host(self._sock.getsockname) if self._sock.fileno() >= 0 else ""

    @property
    def wants_to_send(self) -> bool:
        """Whether a message has not left yet."""
        return bool(self._unsent) and not self.ended

    def fileno(self) -> int:
        """The socket's descriptor, -1 once it is closed; for selectors."""
        return self._sock.fileno()

    def send(self, message: Mapping[str, Any]) -> None:
        """Sends a message, or as much of it as goes at once; `flush` sends the rest.

        Args:
            message: a JSON object with a "kind".
        """
        self._unsent.append(memoryview(json.dumps(message).encode() + b"\n"))
        self.flush()

    def flush(self) -> None:
        """Sends what has not left yet, as far as it goes at once."""
        while self._unsent and not self.ended:
            try:
                num_sent = self._sock.send(self._unsent[0])
            except BlockingIOError:
                return
            except OSError:
                self._unsent.clear()  # that the other side has ended is found in reading: its last words come before
                return
            if num_sent == len(self._unsent[0]):
                self._unsent.popleft()
            else:
                self._unsent[0] = self._unsent[0][num_sent:]

    def receive(self) -> list[Message]:
        """Reads what has come; `ended` is set once the other side has closed.

        Returns:
            Whole messages, in their order.

        Raises:
            WireError: what came is none.
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
        """Reads one message and leaves what follows it unread, for a connection that carries other bytes from then on.

        Returns:
            The message; None where it is not complete yet, or the other side has closed (`ended`).

        Raises:
            WireError: what came is none.
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
        """Gives the socket up, as it is."""
        return self._sock

    def close(self) -> None:
        """Closes the connection; a second time does nothing."""
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
    """Splits "host:port", brackets taken off; the port must be a number."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)
