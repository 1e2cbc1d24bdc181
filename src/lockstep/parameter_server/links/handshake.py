"""Who may talk: each side shows the other that it knows the cluster's token, without saying it.

There are two steps. At the door (ZeroMQ's PLAIN mechanism) a client gives a name that nobody has used before, and a
proof of it: who has none cannot send the listener anything. Within, its first message is answered by a challenge of the
connection's own, with the listener's proof; the client's second proof is of that challenge, and only then is it heard.

The proofs are HMAC-SHA256 with the token as the key, over the listener's role and index as both sides know them by the
topology, the client's name, and in the second step the challenge. So a proof that was seen on the way lets nobody in:
not at another listener, nor at one that was started again, whatever the clocks say. It may open the door once more,
where a listener has been started again: whoever shows it stands before the challenge then, and gets no further.

What follows is neither encrypted nor signed. Who can change what others send, or stands between the two, is not kept
out: the network between the processes of a job has to be one on which nobody does.
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
    """Returns what shows that a side knows the token.

    Args:
        token: the cluster's.
        side: "client" or "server".
        listener: who listens: "ps 0".
        name: the client's name.
        challenge: the connection's; empty at the door.
    """
    said = "\0".join(("lockstep", side, listener, name, challenge))
    return hmac.new(token, said.encode(), hashlib.sha256).hexdigest()


def is_proof(found: object, expected: str) -> bool:
    """Whether what somebody has shown is the proof; takes as long for every answer."""
    return isinstance(found, str) and hmac.compare_digest(found.encode(errors="replace"), expected.encode())


def new_name() -> str:
    """Returns a client's name: what nobody else has."""
    return secrets.token_hex(16)


@final
class Doorkeeper:
    """Answers ZeroMQ's questions whether a peer may come in (ZAP, RFC 27).

    One for each ZeroMQ context. Its owner polls `socket`, and calls `answer` when something is there.

    Args:
        context: the context of the sockets that it is asked for.
        token: the cluster's.
        listener: who listens: "ps 0".

    Attributes:
        socket: where the questions come in.
    """

    def __init__(self, context: zmq.Context[Any], *, token: bytes, listener: str) -> None:
        self._token = token
        self._listener = listener
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
    """What each connection's client has to answer: another one for every connection of every listener that was started.

    Nothing is kept of those who do not answer.
    """

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)

    def of(self, route: bytes) -> str:
        """Returns a connection's challenge, the same whenever it is asked for.

        Args:
            route: ZeroMQ's own name of the connection, which no other one of the socket's has.
        """
        return hmac.new(self._secret, route, hashlib.sha256).hexdigest()
