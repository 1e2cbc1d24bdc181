"""The side of a connection that connects.

It sends one request at a time; each is answered or raises an error in time.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any, Final, final

import zmq
from zmq.utils.monitor import recv_monitor_message

from lockstep.errors import CorruptDataError, LockstepError, UnavailableError
from lockstep.parameter_server.links.frames import MAX_PART_BYTES, Message, Side, read, write
from lockstep.parameter_server.links.handshake import is_proof, new_name, prove
from lockstep.parameter_server.links.listener import DROP, ERROR, HEARTBEATS_MS, HELLO, PROOF
from lockstep.parameter_server.links.segments import Segment

LOGGER: Final = logging.getLogger(__name__)

SEGMENT_BYTES: Final = 24 << 20
SEND_POLL_MS: Final = 20
RECONNECT_S: Final = 0.1
LOG_INTERVAL_S: Final = 30.0
"""How often a process that waits for another one logs this, in seconds."""
_REFUSED: Final = (int(zmq.EVENT_HANDSHAKE_FAILED_AUTH), int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL))
"""The events of a rejected handshake.

A failure "without detail" is not among them: the other side was lost during the handshake, and its successor may be
there in a moment.
"""


@final
class RemoteError(LockstepError):
    """The other side could not do what was requested. Has the text of its error.

    Args:
        text: the text of the error.
        error: the name of the error's class.
    """

    def __init__(self, text: str, *, error: str = "") -> None:
        super().__init__(text)
        self.error = error


class _DisconnectedError(Exception):
    """The other side was lost before it answered. Its successor may be there, but does not know this process yet."""


@final
class Waiting:
    """Logs what a process waits for, at intervals, so that no wait is silent."""

    def __init__(self) -> None:
        self._last_log_s = time.monotonic()

    def log(self, text: str) -> None:
        """Logs the text, unless one was logged recently."""
        now_s = time.monotonic()
        if now_s - self._last_log_s > LOG_INTERVAL_S:
            self._last_log_s = now_s
            LOGGER.warning("%s", text)


@final
class Link:
    """A connection to a `Listener`.

    Thread-safe: a request waits for the previous one. The arrays of an answer are valid until the request after the
    next one is sent. Copy what you need longer.

    Args:
        address: the address of the other side, as "host:port".
        peer_name: the role and index of the other side, as it knows itself: "ps 0".
        token: the token of the cluster.
        name: the name of this side: "worker 1".
        silence_s: the time without any message after which the other side counts as lost, in seconds.
        connect_s: how long to wait for the other side to start, in seconds.
        segment_bytes: the size of the memory to share with the other side if it is on this host, in bytes; 0 for none.

    Raises:
        UnavailableError: the other side does not start in time, or does not know the token.
    """

    def __init__(
        self,
        address: str,
        *,
        peer_name: str,
        token: bytes,
        name: str,
        silence_s: float,
        connect_s: float,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self._address = address
        self._peer_name = peer_name
        self._name = name
        self._number = 0
        self._unanswered: set[int] = set()  # several if a caller stopped waiting: `end` raised, or was not called
        self._why_lost = ""
        self._lock = threading.Lock()
        self._segment: Segment | None = None
        self._token = token
        self._began_s = time.monotonic()
        self._waiting = Waiting()
        deadline, left_s = self._began_s + connect_s, connect_s
        while True:
            self._open(silence_s)
            try:
                self._send_hello(segment_bytes, timeout_s=left_s)
                return
            except _DisconnectedError:
                self.close()
                time.sleep(RECONNECT_S)
                left_s = deadline - time.monotonic()
                if left_s < 0:
                    raise self._lost("it closes the connection before it answers") from None
            except BaseException:
                self.close()
                raise

    def _open(self, silence_s: float) -> None:
        self._user = new_name()
        self._context: zmq.Context[Any] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.plain_username = self._user.encode()
        self._socket.plain_password = self._prove("client").encode()
        self._socket.maxmsgsize = MAX_PART_BYTES
        self._socket.set_hwm(0)
        self._socket.heartbeat_ivl = int(silence_s * HEARTBEATS_MS)
        self._socket.heartbeat_timeout = int(silence_s * 1000)
        # The other side would take a new connection for another peer, so this link ends with its first connection.
        self._monitor: zmq.Socket[Any] = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED | sum(_REFUSED))
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)
        self._socket.connect(f"tcp://{self._address}")

    def request(self, message: Message, *, timeout_s: float | None = None) -> Message:
        """Sends a message and waits for its answer.

        Args:
            message: the message.
            timeout_s: how long the answer may take, in seconds; None for as long as the other side lives.

        Raises:
            UnavailableError: the other side is lost, or did not answer in time. The link cannot be used any more. The
                other side is lost if its process has ended or is stopped, or if nothing arrives from its machine. While
                it hangs in its own program, it is not lost, because ZeroMQ's threads continue to answer for it.
            RemoteError: the other side could not do what was requested.
            InvalidInputError: the message cannot be sent; nothing was sent.
        """
        with self._lock:
            self.begin(message, timeout_s=timeout_s)
            return self.end(timeout_s=timeout_s)

    def begin(self, message: Message, *, timeout_s: float | None = None) -> None:
        """Sends a message whose answer `end` returns. To request from several sides at once, begin all, then end all.

        Not thread-safe.

        Raises:
            UnavailableError: as for `request`.
            InvalidInputError: as for `request`.
        """
        if self._why_lost:  # another process may listen there by now
            raise self._lost(self._why_lost)
        self._number += 1
        try:
            # The other side may still read, or have yet to read, the arrays of a request whose answer is not awaited
            # any more.
            segment = None if self._unanswered else self._segment
            frames = write(message, number=self._number, segment=segment, side=Side.CLIENT)
            self._unanswered.add(self._number)
            self._send(frames, is_connected=True, timeout_s=timeout_s)
        except zmq.ZMQError as error:
            raise self._lost(str(error)) from error

    def end(self, *, timeout_s: float | None = None) -> Message:
        """Waits for the answer to the last message that was begun, and returns it.

        Raises:
            UnavailableError: as for `request`.
            RemoteError: as for `request`.
        """
        try:
            answer = self._await(self._number, timeout_s=timeout_s)
        except zmq.ZMQError as error:
            raise self._lost(str(error)) from error
        if answer.kind == ERROR:
            raise RemoteError(str(answer.fields.get("text", "")), error=str(answer.fields.get("error", "")))
        return answer

    @property
    def is_lost(self) -> bool:
        """Whether the other side is lost, so that the link cannot be used any more."""
        return bool(self._why_lost)

    def close(self) -> None:
        """Closes the connection. Idempotent."""
        self._monitor.close(linger=0)
        self._socket.close(linger=0)
        self._context.term()
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    def _send_hello(self, segment_bytes: int, *, timeout_s: float) -> None:
        """Requests the other side's proof and challenge, answers the challenge, and offers memory to share."""
        greeted = self._exchange(Message(kind=HELLO), timeout_s=timeout_s)
        challenge = str(greeted.fields.get("challenge"))
        if greeted.kind != HELLO or not is_proof(greeted.fields.get("proof"), self._prove("server", challenge)):
            raise self._lost("it does not know the cluster's token")
        offered, name, secret = None, "", ""
        if segment_bytes:
            try:
                offered, name, secret = Segment.create(segment_bytes)
            except OSError as error:
                LOGGER.warning("no memory is shared with %s: %s", self._address, error)
        fields: dict[str, Any] = {"name": self._name, "proof": self._prove("client", challenge)}
        if offered is not None:
            fields["segment"] = {"name": name, "size_bytes": segment_bytes, "proof": secret}
        try:
            answer = self._exchange(Message(kind=PROOF, fields=fields), timeout_s=timeout_s)
        finally:
            if offered is not None:
                offered.withdraw()
        if answer.fields.get("shares") is True:
            self._segment = offered
        elif offered is not None:
            offered.close()

    def _prove(self, side: str, challenge: str = "") -> str:
        return prove(self._token, side=side, listener=self._peer_name, name=self._user, challenge=challenge)

    def _exchange(self, message: Message, *, timeout_s: float) -> Message:
        """Sends a message of the handshake, before the first request, and waits for its answer."""
        frames = write(message, number=0, segment=None, side=Side.CLIENT)
        self._send(frames, is_connected=False, timeout_s=timeout_s)
        return self._await(0, timeout_s=timeout_s)

    def _send(self, frames: list[bytes | memoryview], *, is_connected: bool, timeout_s: float | None) -> None:
        """Sends a message, or finds out why it cannot be sent: without a connection, ZeroMQ would wait forever."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            try:
                self._socket.send_multipart(frames, zmq.NOBLOCK, copy=False)
                return
            except zmq.Again:
                if deadline is not None and time.monotonic() > deadline:
                    raise self._lost(f"nothing could be sent within {timeout_s:g} s") from None
                if self._monitor.poll(SEND_POLL_MS):
                    self._handle_event(recv_monitor_message(self._monitor)["event"], is_connected=is_connected)

    def _await(self, number: int, *, timeout_s: float | None) -> Message:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise self._lost(f"no answer within {timeout_s:g} s")
            if number == 0:  # the other side may not exist yet
                waited_s = time.monotonic() - self._began_s
                what = f"{self._peer_name} at {self._address}, which has not answered for {waited_s:.0f} s"
                self._waiting.log(f"{self._name} waits for {what}")
                left_s = LOG_INTERVAL_S if left_s is None else min(left_s, LOG_INTERVAL_S)
            ready = dict(self._poller.poll(None if left_s is None else int(left_s * 1000) + 1))
            if self._socket in ready:
                header, *parts = self._socket.recv_multipart(copy=False)
                try:
                    found, answer = read(
                        header.buffer, [part.buffer for part in parts], segment=self._segment, side=Side.SERVER
                    )
                except CorruptDataError as error:
                    raise self._lost(str(error)) from error
                if answer.kind == DROP:
                    raise self._lost(str(answer.fields.get("text")))
                self._unanswered.discard(found)
                if found == number:
                    return answer
            elif self._monitor in ready:
                self._handle_event(recv_monitor_message(self._monitor)["event"], is_connected=number > 0)

    def _handle_event(self, event: int, *, is_connected: bool) -> None:
        if event in _REFUSED:
            raise self._lost(
                f"it rejects this process's token: it has another one, or is another process than {self._peer_name}"
            )
        if event == zmq.EVENT_DISCONNECTED:
            raise self._lost("it has gone") if is_connected else _DisconnectedError

    def _lost(self, why: str) -> UnavailableError:
        self._why_lost = why
        return UnavailableError(f"{self._name} cannot reach {self._peer_name} at {self._address}: {why}")
