"""The handshake: each side proves to the other that it knows the cluster's token, without revealing it.

It has two steps. In the first one (ZeroMQ's PLAIN mechanism), the client presents a name that was never used before,
and a proof for it. Without this proof, a client cannot send the listener anything. In the second one, the listener
answers the client's first message with a challenge for this connection, and with its own proof. The client's second
proof covers the challenge. Only after that does the listener accept the client's requests.

Proofs are HMAC-SHA256, with the token as the key, over the listener's role and index (known to both sides from the
topology), the client's name and, in the second step, the challenge. So an observed proof admits nobody: neither to
another listener, nor to a restarted one, whatever the clocks say. At a restarted listener, it may pass the first step
once more, but not the challenge.

The messages that follow are neither encrypted nor signed. The handshake does not protect against anybody who can modify
the traffic, or stand between the two sides. The network between the processes of a job must be free of such attackers.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from typing import Any, Final, final

import zmq

ZAP_ADDRESS: Final = "inproc://zeromq.zap.01"
MAX_NAMES: Final = 100_000
_ZAP_VERSION: Final = b"1.0"
_NAME: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)


def prove(token: bytes, *, side: str, listener: str, name: str, challenge: str = "") -> str:
    """Returns the proof that a side knows the token.

    Args:
        token: the token of the cluster.
        side: the side that proves: "client" or "server".
        listener: the role and index of the listener: "ps 0".
        name: the client's name.
        challenge: the challenge of the connection; empty in the first step.
    """
    said = "\0".join(("lockstep", side, listener, name, challenge))
    return hmac.new(token, said.encode(), hashlib.sha256).hexdigest()


def is_proof(found: object, expected: str) -> bool:
    """Whether a presented proof is the expected one. Takes the same time for every value."""
    return isinstance(found, str) and hmac.compare_digest(found.encode(errors="replace"), expected.encode())


def new_name() -> str:
    """Returns a unique name for a client."""
    return secrets.token_hex(16)


@final
class ZapAuthenticator:
    """Decides for ZeroMQ which peers may connect (ZAP, RFC 27).

    There is one for each ZeroMQ context. The owner polls `socket`, and calls `answer` when it is readable.

    Args:
        context: the context of the listener's sockets.
        token: the token of the cluster.
        listener: the role and index of the listener: "ps 0".

    Attributes:
        socket: the socket on which ZeroMQ's requests arrive.
    """

    def __init__(self, context: zmq.Context[Any], *, token: bytes, listener: str) -> None:
        self._token = token
        self._listener = listener
        self._names: dict[str, None] = {}
        self.socket: zmq.Socket[Any] = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind(ZAP_ADDRESS)

    def answer(self) -> None:
        """Answers one request of ZeroMQ."""
        frames = self.socket.recv_multipart()
        request = frames[1] if len(frames) > 1 else b""
        name = self._admitted(frames)
        code, text = (b"200", b"OK") if name is not None else (b"400", b"the token is not the cluster's")
        self.socket.send_multipart([_ZAP_VERSION, request, code, text, (name or "").encode(), b""])

    def close(self) -> None:
        """Closes the socket."""
        self.socket.close(linger=0)

    def _admitted(self, frames: list[bytes]) -> str | None:
        if len(frames) != 8 or frames[0] != _ZAP_VERSION or frames[5] != b"PLAIN":
            return None
        name, proof = (frame.decode("ascii", "replace") for frame in frames[6:])
        if not _NAME.fullmatch(name) or name in self._names:
            return None
        if not is_proof(proof, prove(self._token, side="client", listener=self._listener, name=name)):
            return None
        self._names[name] = None
        while len(self._names) > MAX_NAMES:
            del self._names[next(iter(self._names))]
        return name


@final
class Challenges:
    """Challenges for the clients of a listener. Every connection to every start of a listener has another one.

    Nothing is stored for clients that do not answer.
    """

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)

    def of(self, route: bytes) -> str:
        """Returns the challenge of a connection. Always the same one for the same connection.

        Args:
            route: ZeroMQ's own id of the connection, which is unique within the socket.
        """
        return hmac.new(self._secret, route, hashlib.sha256).hexdigest()
