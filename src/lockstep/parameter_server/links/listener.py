"""The side of a connection that others connect to. It receives their requests, answers them, and notices lost peers.

One thread owns all sockets. A request may be answered at once, or later, after other requests: a worker that waits for
the slowest of all workers is answered when that one has arrived.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, final

import zmq

from lockstep.errors import CorruptDataError, EngineError, InvalidInputError, LockstepError
from lockstep.parameter_server.links.frames import MAX_PART_BYTES, Message, Side, number_in, read, sendable_text, write
from lockstep.parameter_server.links.handshake import Challenges, ZapAuthenticator, is_proof, prove
from lockstep.parameter_server.links.segments import Segment

LOGGER: Final = logging.getLogger(__name__)

POLL_S: Final = 0.25
PING_S: Final = 0.5
HEARTBEATS_MS: Final = 250
"""A factor from seconds of silence to the heartbeat interval in milliseconds: a quarter of the time after which a peer
counts as lost. ZeroMQ's own threads send and answer heartbeats.
"""
HELLO: Final = "hello"
"""The client's first message. It is answered with a challenge."""
PROOF: Final = "proof"
"""The client's answer to the challenge. The client is a peer from then on."""
ERROR: Final = "error"
PING: Final = "ping"
DROP: Final = "drop"
"""Tells a client that the listener does not accept it, so that it does not wait."""
USER_ID: Final = "User-Id"


@final
@dataclass(kw_only=True)
class Peer:
    """A connected process.

    Attributes:
        route: ZeroMQ's id of the connection.
        name: the name that the peer calls itself: "worker 1".
        user: the unique name that the peer has proved.
        segment: the memory that the peer shares with this process; None if it is on another host.
        waiting: the numbers of its requests that have not been answered yet.
        newest: the number of its last request.
    """

    route: bytes
    name: str
    user: str = ""
    segment: Segment | None = None
    waiting: set[int] = field(default_factory=set[int])
    newest: int = 0


@final
@dataclass(frozen=True, kw_only=True)
class Request:
    """A message that is to be answered once, by `Listener.reply`.

    Attributes:
        peer: the sender.
        number: the number of the request among those of the peer.
        message: the message. Its arrays are valid until it is answered.
    """

    peer: Peer
    number: int
    message: Message


Handle = Callable[[Request], "Message | None"]
"""Handles a request. Returns its answer, or None to answer later. An exception that it raises becomes the answer."""


@final
class Listener:
    """A ROUTER socket, and the peers that are connected to it.

    Args:
        address: the address to listen at, as "host:port"; port 0 for any free port.
        name: the role and index of this process, as its peers know it: "ps 0".
        token: the token of the cluster. Processes that do not know it cannot connect.
        silence_s: the time without any message after which a peer counts as lost, in seconds.
        clock: a function that returns the seconds of a monotonic clock.

    Attributes:
        address: the address of the socket.

    Raises:
        EngineError: the address is in use, or does not belong to this machine.
    """

    def __init__(
        self, address: str, *, name: str, token: bytes, silence_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = name
        self._token = token
        self._challenges = Challenges()
        self._clock = clock
        self._peers: dict[bytes, Peer] = {}
        self._gone: list[Peer] = []
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._next_ping_s = 0.0
        self._context: zmq.Context[Any] = zmq.Context()
        self._authenticator = ZapAuthenticator(self._context, token=token, listener=name)
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 0
        self._socket.plain_server = True
        self._socket.router_mandatory = True
        self._socket.maxmsgsize = MAX_PART_BYTES
        self._socket.set_hwm(0)  # a peer that does not read is found by its silence and dropped
        self._socket.heartbeat_ivl = int(silence_s * HEARTBEATS_MS)
        self._socket.heartbeat_timeout = int(silence_s * 1000)
        try:
            self._socket.bind(f"tcp://{address}")
        except zmq.ZMQError as error:
            self.close()
            raise EngineError(f"cannot listen at {address}: {error}") from error
        self.address = self._socket.last_endpoint.decode().removeprefix("tcp://")

    @property
    def peers(self) -> list[Peer]:
        """The connected peers."""
        return list(self._peers.values())

    def step(self, handle: Handle, *, timeout_s: float = POLL_S) -> list[Peer]:
        """Receives a message, and handles it. Waits at most `timeout_s` for one.

        Args:
            handle: the function that handles each request.
            timeout_s: how long to wait for a message, in seconds.

        Returns:
            The peers that were lost meanwhile.
        """
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._authenticator.socket, zmq.POLLIN)
        poller.register(self._woken, zmq.POLLIN)
        ready = dict(poller.poll(int(timeout_s * 1000)))
        if self._woken.fileno() in ready:
            with contextlib.suppress(BlockingIOError):
                self._woken.recv(4096)
        if self._authenticator.socket in ready:
            self._authenticator.answer()
        if self._socket in ready:
            self._receive(handle)
        self._ping()
        gone, self._gone = self._gone, []
        return gone

    def wake(self) -> None:
        """Makes a waiting `step` return. The only method that other threads may call."""
        with contextlib.suppress(OSError):  # its buffer is full, or it is closed
            self._waker.send(b".")

    def reply(self, request: Request, answer: Message) -> bool:
        """Answers a request. If the answer cannot be sent, an error is sent instead.

        Returns:
            Whether the peer is still connected.
        """
        peer = request.peer
        if self._peers.get(peer.route) is not peer or request.number not in peer.waiting:
            return False
        peer.waiting.remove(request.number)
        may_share = request.number == peer.newest  # else the peer may be reading a later answer in the same part
        try:
            return self._send(peer, answer, number=request.number, may_share=may_share)
        except (InvalidInputError, MemoryError) as error:
            LOGGER.error("the answer to %s cannot be sent: %s", peer.name, error)
            return self._send(peer, _answer_of(error), number=request.number)

    def refuse(self, request: Request, error: Exception) -> bool:
        """Answers a request with an error; returns whether the peer is still connected."""
        text: str | None = None
        if not isinstance(error, LockstepError):
            LOGGER.error("a request of %s failed", request.peer.name, exc_info=error)
            text = f"{type(error).__name__} in the process at {self.address}: {error}"
        return self.reply(request, _answer_of(error, text=text))

    def drop(self, peer: Peer) -> None:
        """Forgets a peer. Its open requests are not answered. Idempotent."""
        if self._peers.get(peer.route) is peer:
            del self._peers[peer.route]
            self._gone.append(peer)
        if peer.segment is not None:
            peer.segment.close()
            peer.segment = None

    def close(self) -> None:
        """Closes all connections. Idempotent."""
        for peer in self.peers:
            self.drop(peer)
        self._socket.close(linger=0)
        self._authenticator.close()
        self._context.term()
        self._woken.close()
        self._waker.close()

    def _ping(self) -> None:
        """Finds lost peers: a message to a peer whose connection is closed cannot be sent."""
        now_s = self._clock()
        if now_s >= self._next_ping_s:
            self._next_ping_s = now_s + PING_S
            for peer in self.peers:
                self._send(peer, Message(kind=PING), number=-1)

    def _receive(self, handle: Handle) -> None:
        route, header, *parts = self._socket.recv_multipart(copy=False)
        peer = self._peers.get(route.bytes)
        if peer is not None and peer.user != route.get(USER_ID):  # a client may choose another's route
            peer = None
        try:
            shared = peer.segment if peer is not None else None
            number, message = read(header.buffer, [part.buffer for part in parts], segment=shared, side=Side.CLIENT)
        except CorruptDataError as error:
            LOGGER.warning("a message of %s was not understood: %s", peer.name if peer else "an unknown client", error)
            self._refuse(
                peer or Peer(route=route.bytes, name="an unknown client"), error, number=number_in(header.buffer)
            )
            return
        if peer is None:
            self._authenticate(route, message, number=number)
            return
        peer.waiting.add(number)
        peer.newest = number
        request = Request(peer=peer, number=number, message=message)
        try:
            answer = handle(request)
        except Exception as error:  # the sender must get an answer, and the others must still be served
            self.refuse(request, error)
            return
        if answer is not None:
            self.reply(request, answer)

    def _refuse(self, peer: Peer, error: CorruptDataError, *, number: int | None) -> None:
        """Keeps the sender of an unreadable message from waiting for an answer: sends an error, or drops the peer."""
        if number is None or peer.route not in self._peers:
            self._drop_and_notify(peer, f"it cannot read what {peer.name} has sent: {error}")
        else:
            self._send(peer, _answer_of(error), number=number)

    def _drop_and_notify(self, peer: Peer, why: str) -> None:
        """Drops a peer, and tells it so, because ZeroMQ cannot close a single connection of a socket."""
        self._send(peer, Message(kind=DROP, fields={"text": sendable_text(why)}), number=-1, may_share=False)
        self.drop(peer)

    def _authenticate(self, route: zmq.Frame, message: Message, *, number: int) -> None:
        """Challenges a new client, or admits one that has answered. An overheard proof does not fit a new challenge."""
        user, challenge = str(route.get(USER_ID)), self._challenges.of(route.bytes)
        stranger = Peer(route=route.bytes, name="an unknown client")
        if message.kind == HELLO:
            proof = self._prove("server", user, challenge)
            fields = {"challenge": challenge, "proof": proof}
            self._send(stranger, Message(kind=HELLO, fields=fields), number=number)
        elif message.kind != PROOF:
            self._drop_and_notify(stranger, "it does not know who this is")
        elif not is_proof(message.fields.get("proof"), self._prove("client", user, challenge)):
            LOGGER.warning("a client of %s at %s presented a proof for another connection", self._name, self.address)
            self._drop_and_notify(stranger, "it rejects this process's proof")
        else:
            self._admit(route, message, user=user, number=number)

    def _prove(self, side: str, user: str, challenge: str) -> str:
        return prove(self._token, side=side, listener=self._name, name=user, challenge=challenge)

    def _admit(self, route: zmq.Frame, message: Message, *, user: str, number: int) -> None:
        name, offered = str(message.fields.get("name")), message.fields.get("segment")
        peer = Peer(route=route.bytes, name=name, user=user)
        if isinstance(offered, dict):
            try:
                peer.segment = Segment.open(
                    str(offered["name"]), size_bytes=int(offered["size_bytes"]), proof=str(offered["proof"])
                )
            except (CorruptDataError, KeyError, TypeError, ValueError, OverflowError, OSError) as error:
                LOGGER.warning("no memory is shared with %s: %s", name, error)
        self._peers[peer.route] = peer
        fields = {"shares": peer.segment is not None}
        self._send(peer, Message(kind=PROOF, fields=fields), number=number, may_share=False)

    def _send(self, peer: Peer, message: Message, *, number: int, may_share: bool = True) -> bool:
        try:
            frames = write(message, number=number, segment=peer.segment if may_share else None, side=Side.SERVER)
            self._socket.send_multipart([peer.route, *frames], copy=False)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self.drop(peer)
            return False
        return True


def _answer_of(error: Exception, *, text: str | None = None) -> Message:
    fields = {"error": type(error).__name__, "text": sendable_text(str(error) if text is None else text)}
    return Message(kind=ERROR, fields=fields)
