"""Who may talk: a peer shows that it knows the cluster's token, without saying it, before anything of it is read.

A client sends a name that nobody has used before and a proof of it (ZeroMQ's PLAIN mechanism carries both); the server
proves itself in its first answer. The proofs are HMAC-SHA256 over the name, with the token as the key. A proof that was
seen on the way is of no use to another: its name is taken. What follows is neither encrypted nor signed: the network
between the processes of a job has to be one on which nobody changes what others send.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from typing import Any, Final, final

import zmq

ZAP_ADDRESS: Final = "inproc://zeromq.zap.01"
MAX_SKEW_S: Final = 3600.0
"""How far the clocks of two machines may be apart."""
MAX_NAMES: Final = 100_000
_ZAP_VERSION: Final = b"1.0"


def prove(token: bytes, *, side: str, name: str) -> bytes:
    """Returns what shows that a side knows the token.

    Args:
        token: the cluster's.
        side: "client" or "server".
        name: the client's name.
    """
    return hmac.new(token, f"lockstep {side} {name}".encode(), hashlib.sha256).hexdigest().encode()


def new_name(now_s: float) -> str:
    """Returns a client's name: when it was made, and what nobody else has."""
    return f"{now_s:.0f}-{secrets.token_hex(16)}"


@final
class Doorkeeper:
    """Answers ZeroMQ's questions whether a peer may come in (ZAP, RFC 27).

    One for each ZeroMQ context. Its owner polls `socket`, and calls `answer` when something is there.

    Args:
        context: the context of the sockets that it is asked for.
        token: the cluster's.
        clock: seconds since 1970 UTC.

    Attributes:
        socket: where the questions come in.
    """

    def __init__(self, context: zmq.Context[Any], *, token: bytes, clock: Callable[[], float]) -> None:
        self._token = token
        self._clock = clock
        self._names: dict[str, None] = {}
        self.socket: zmq.Socket[Any] = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind(ZAP_ADDRESS)

    def answer(self) -> None:
        """Answers one question."""
        frames = self.socket.recv_multipart()
        request = frames[1] if len(frames) > 1 else b""
        name = self._admitted(frames)
        code, text = (b"200", b"OK") if name is not None else (b"400", b"the token is not the cluster's")
        self.socket.send_multipart([_ZAP_VERSION, request, code, text, (name or "").encode(), b""])

    def close(self) -> None:
        """Answers no more."""
        self.socket.close(linger=0)

    def _admitted(self, frames: list[bytes]) -> str | None:
        if len(frames) != 8 or frames[0] != _ZAP_VERSION or frames[5] != b"PLAIN":
            return None
        name, proof = frames[6].decode("ascii", "replace"), frames[7]
        made_s, _, rest = name.partition("-")
        if not (made_s.isdecimal() and len(made_s) < 16 and len(rest) == 32):
            return None
        if not hmac.compare_digest(proof, prove(self._token, side="client", name=name)):
            return None
        if name in self._names or abs(self._clock() - int(made_s)) > MAX_SKEW_S:
            return None
        self._names[name] = None
        while len(self._names) > MAX_NAMES:
            del self._names[next(iter(self._names))]
        return name
