"""ZeroMQ: a ROUTER socket and DEALER sockets, multipart messages, large parts without a copy.

An address that ends in ``#curve`` is served with CURVE: both sides prove that they know a key, and all is encrypted.
"""

from __future__ import annotations

from typing import Any, Final, final

import numpy as np
import zmq
import zmq.utils.z85
from harness.protocol import say

from transports.traffic import Answer

CURVE: Final = "#curve"
SECRET: Final = zmq.utils.z85.encode(bytes(range(32)))  # what a token would give; both sides have it
PUBLIC: Final = zmq.curve_public(SECRET)


def _socket(kind: int, address: str) -> Any:
    socket = zmq.Context.instance().socket(kind)
    if address.endswith(CURVE):
        socket.curve_secretkey, socket.curve_publickey = SECRET, PUBLIC
        if kind == zmq.ROUTER:
            socket.curve_server = True
        else:
            socket.curve_serverkey = PUBLIC
    return socket


def serve(address: str, answer: Answer) -> None:
    """Answers exchanges until it is killed; ``address`` is ``tcp://...`` or ``ipc://...``."""
    socket = _socket(zmq.ROUTER, address)
    socket.bind(address.removesuffix(CURVE))
    say({})
    while True:
        peer, header, *parts = socket.recv_multipart(copy=False)
        reply_header, reply = answer(header.bytes, [part.buffer for part in parts])
        socket.send_multipart([peer, reply_header, *reply], copy=False)


@final
class ZeroMqClient:
    """One DEALER."""

    def __init__(self, address: str) -> None:
        self._socket = _socket(zmq.DEALER, address)
        self._socket.connect(address.removesuffix(CURVE))

    def exchange(self, header: bytes, buffers: list[np.ndarray]) -> tuple[bytes, list[memoryview]]:
        self._socket.send_multipart([header, *buffers], copy=False)
        first, *parts = self._socket.recv_multipart(copy=False)
        return first.bytes, [part.buffer for part in parts]

    def close(self) -> None:
        self._socket.close(linger=0)
