"""Forwards the bytes of JAX's coordination client to the chief's coordination service, over the chief's one address.

JAX's client ends its process by itself, possibly in the middle of a line of output, when the connection to its service
closes. Behind a relay, it never notices that, so only `peers/watchdog.py` detects and reports a lost peer. The service
listens on the loopback interface of the chief's machine, at any free port, so the other processes need to reach no
other address of the chief.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections.abc import Callable
from typing import Final, final

_PART_BYTES: Final = 65536
_MAX_WAITING_BYTES: Final = 2**20
LOOPBACK: Final = "127.0.0.1"


@final
class _End:
    """One end of a relayed connection, and the bytes that wait to be sent to it."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        with contextlib.suppress(OSError):  # the socket may be closed already, or may not be a TCP socket
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.waiting = bytearray()
        self.other: _End = self
        self.ended = False


@final
class Relay:
    """A thread that forwards bytes between pairs of sockets until the process ends.

    When one end closes, the other end is closed too, unless it is to be kept (`join`). All methods are thread-safe.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._new: list[tuple[_End, _End]] = []
        self._kept: set[_End] = set()
        self._lock = threading.Lock()
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        threading.Thread(target=self._run, name="lockstep-relay", daemon=True).start()

    def join(self, one: socket.socket, other: socket.socket, *, keep: socket.socket | None = None) -> None:
        """Starts to forward bytes between two connected sockets. The relay closes them at the end.

        Args:
            one: a connected socket.
            other: a connected socket.
            keep: the one of the two that stays open, but silent, when the other one closes.
        """
        left, right = _End(one), _End(other)
        left.other, right.other = right, left
        with self._lock:
            self._new.append((left, right))
            if keep is not None:
                self._kept.add(left if keep is one else right)
        self._wake_writer.send(b"\0")

    def listen(self, open_other: Callable[[], socket.socket | None]) -> int:
        """Listens on the loopback interface, and joins each accepted connection to a new one.

        The accepted connection is kept open when the new one closes.

        Args:
            open_other: a function that opens the other connection, and may block for a short time. It returns None if
                it fails.

        Returns:
            The port.
        """
        listener = socket.create_server((LOOPBACK, 0))
        accepting = threading.Thread(
            target=self._accept, args=(listener, open_other), name="lockstep-relay-listener", daemon=True
        )
        accepting.start()
        return int(listener.getsockname()[1])

    def _accept(self, listener: socket.socket, open_other: Callable[[], socket.socket | None]) -> None:
        while True:
            accepted, _ = listener.accept()
            other = open_other()
            if other is None:
                self._hold(accepted)
            else:
                self.join(accepted, other, keep=accepted)

    def _hold(self, sock: socket.socket) -> None:
        # The chief is gone. The client gets no answer, as if the chief were slow.
        silent, closed = socket.socketpair()
        closed.close()
        self.join(sock, silent, keep=sock)

    def _run(self) -> None:
        while True:
            for key, events in self._selector.select():
                if key.fileobj is self._wake_reader:
                    self._wake_reader.recv(_PART_BYTES)
                    self._register_new()
                    continue
                end: _End = key.data
                if events & selectors.EVENT_WRITE:
                    self._write(end)
                if events & selectors.EVENT_READ:
                    self._read(end)

    def _register_new(self) -> None:
        with self._lock:
            new, self._new = self._new, []
        for pair in new:
            for end in pair:
                self._watch(end)

    def _read(self, end: _End) -> None:
        try:
            part = end.sock.recv(_PART_BYTES)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        if not part:
            self._end(end)
            return
        end.other.waiting += part
        self._write(end.other)
        self._watch(end)

    def _write(self, end: _End) -> None:
        if end.ended:
            end.waiting.clear()
            return
        try:
            num_sent = end.sock.send(end.waiting) if end.waiting else 0
        except BlockingIOError:
            num_sent = 0
        except OSError:
            self._end(end)
            return
        del end.waiting[:num_sent]
        self._watch(end)
        self._watch(end.other)
        if end.other.ended and not end.waiting and end not in self._kept:
            self._end(end)

    def _watch(self, end: _End) -> None:
        """Registers the events that the end can handle now. It is not read while its other end's buffer is full."""
        if end.sock.fileno() < 0:
            return  # closed; it was unregistered before that
        events = selectors.EVENT_WRITE if end.waiting else 0
        if len(end.other.waiting) < _MAX_WAITING_BYTES:
            events |= selectors.EVENT_READ
        registered = end.sock.fileno() in self._selector.get_map()
        if end.ended or not events:
            if registered:
                self._selector.unregister(end.sock)
        elif registered:
            self._selector.modify(end.sock, events, end)
        else:
            self._selector.register(end.sock, events, end)

    def _end(self, end: _End) -> None:
        if end.ended:
            return
        end.ended = True
        self._watch(end)
        with contextlib.suppress(OSError):
            end.sock.close()
        if not end.other.waiting and end.other not in self._kept:
            self._end(end.other)
