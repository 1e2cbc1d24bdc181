"""Watches the other processes of a job, and ends this process when a peer is lost.

One thread sends a heartbeat to every peer that it has a connection to, and receives theirs. The chief is connected to
all processes, and every other process to the chief. If a connection ends without a goodbye, the peer has died. If it is
silent for too long, the peer hangs or the network is interrupted. The chief reports a lost peer to the others. Every
process then ends through `lockstep.strategies.peers.endings`, because nothing else ends a collective.

Two things cause a false alarm: a C extension that holds Python's global interpreter lock for longer than the timeout,
and a machine so overloaded that the thread does not run for that long. XLA compiles, runs and waits without that lock.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, final

from lockstep.errors import BackendError, PeerLostError
from lockstep.strategies.peers.meeting import PROTOCOL, Meeting
from lockstep.strategies.peers.relay import LOOPBACK, Relay
from lockstep.strategies.peers.wire import Connection, Message, WireError

logger = logging.getLogger(__name__)

AGREEMENT_TIMEOUT_S: Final = 600
"""How long a process waits at ``fit`` for others that are alive but do something else."""

_SAID_AFTER_S: Final = 30.0
"""How long a process waits for the others before it logs that it is waiting."""

_MAX_SILENCE: Final = 0.8
"""The fraction of the timeout after which a silent peer is lost, so that all processes end within the timeout."""

_MAX_HOLD: Final = 1 / 3
"""The fraction of the timeout that a process whose program has ended waits for the other programs to end."""

_HEARTBEATS_IN_SILENCE: Final = 6
_NEWS_TIMEOUT_S: Final = 2.0
_FLUSH_TIMEOUT_S: Final = 1.0
_OWN_WORDS_S: Final = 1.0
_SERVICE_TIMEOUT_S: Final = 60.0


def first_difference(reports: Mapping[str, tuple[str, Sequence[str]]]) -> str | None:
    """Compares what the processes reported about the same step of the program, entry by entry.

    Args:
        reports: the name of what each process begins and its entries, by process. The others are compared with the
            first process.

    Returns:
        A description of the first difference; None if there is none.
    """
    (first, (what, entries)), *others = reports.items()
    for other, (other_what, other_entries) in others:
        if other_what != what:
            return f"{first} starts {what} and {other} starts {other_what}"
        for position in range(max(len(entries), len(other_entries))):
            one = entries[position] if position < len(entries) else "nothing more"
            two = other_entries[position] if position < len(other_entries) else "nothing more"
            if one != two:
                return f"the processes differ at {what}: {first} has {one}, {other} has {two}"
    return None


@final
class Watchdog:
    """The thread that watches the other processes.

    Its methods may be called from any thread.

    Args:
        meeting: the result of the meeting. The watchdog owns its connections from then on.
        on_loss: a function that is called once, in the watchdog's thread, when a peer is lost. It ends the process, and
            returns only if an error of the process's own is ending it already.
    """

    def __init__(self, meeting: Meeting, *, on_loss: Callable[[PeerLostError], None]) -> None:
        self._meeting = meeting
        self._on_loss = on_loss
        self._limit_s = meeting.timeout_s * _MAX_SILENCE
        self._interval_s = min(1.0, self._limit_s / _HEARTBEATS_IN_SILENCE)
        self._links = dict(meeting.links)
        self._heard_at = dict.fromkeys(self._links, time.monotonic())
        self._beat_at = 0.0
        self._outbox: list[tuple[int | None, Message]] = []
        self._num_posted = self._num_sent = 0
        self._left: set[int] = set()
        self._leaving = False
        self._failures: dict[int, tuple[float, str]] = {}
        self._loss: PeerLostError | None = None
        self._num_agreements = 0
        self._reports: dict[int, dict[int, tuple[str, list[str]]]] = {}
        self._answers: dict[int, Message] = {}
        self._changed = threading.Condition()
        self._relay: Relay | None = None
        self._service_port: int | None = None
        self._new_connections: dict[Connection, float] = {}
        self._selector = selectors.DefaultSelector()
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        for link in self._links.values():
            self._selector.register(link, selectors.EVENT_READ)
        if meeting.listener is not None:
            self._selector.register(meeting.listener, selectors.EVENT_READ)
        os.register_at_fork(after_in_child=self._close_in_child)
        threading.Thread(target=self._watch, name="lockstep-watchdog", daemon=True).start()

    def relay_to(self, service_port: int) -> None:
        """Starts to forward connections that show the meeting's token to JAX's coordination service. Chief only.

        Args:
            service_port: the service's port on the loopback interface. The service may start to listen a little later.
        """
        self._relay = Relay()
        self._service_port = service_port

    def agree(
        self, what: str, entries: Sequence[str], *, action: str = "run the same program in every process"
    ) -> None:
        """Checks that all processes have the same entries. Blocks until each of them has called this.

        Args:
            what: the name of what the process begins, such as "fit".
            entries: the lines that must be equal in all processes.
            action: the advice in the error if they differ.

        Raises:
            BackendError: the processes differ, or another one does not call this. It is raised in every process.
            PeerLostError: another process has ended its program already. It is raised in every process that has not.
        """
        digest = hashlib.sha256("\n".join(entries).encode()).hexdigest()
        if self.compare(what, [digest]) is None:
            return
        difference = self.compare(what, entries)  # every process gets here; now the entries themselves are sent
        if difference is not None:
            raise BackendError(difference, action=action)

    def compare(self, what: str, entries: Sequence[str], *, timeout_s: float = AGREEMENT_TIMEOUT_S) -> str | None:
        """Compares the entries of all processes at a point that all of them reach. Blocks until all have reached it.

        Args:
            what: the name of what the process begins, or has done.
            entries: this process's lines.
            timeout_s: how long to wait for others that are alive but do something else, in seconds.

        Returns:
            A description of the first difference, None if there is none; the same in every process.

        Raises:
            BackendError: another process does not reach this point.
            PeerLostError: another process has ended its program already. It is raised in every process that has not.
        """
        with self._changed:
            number = self._num_agreements
            self._num_agreements += 1
            if self._meeting.rank == 0:
                self._reports.setdefault(number, {})[0] = (what, list(entries))
        if self._meeting.rank != 0:
            self._post(0, {"kind": "agree", "number": number, "what": what, "entries": list(entries)})
        self._wake()
        with self._changed:
            if not self._wait_for_answer(number, what, timeout_s):
                raise BackendError(
                    f"another process did not reach {what} within {timeout_s:g} s",
                    action=f"call {what} in every process",
                )
            answer = self._answers.pop(number, {"left": 0})
        left = answer.get("left")
        if left is not None:
            raise PeerLostError(f"{self._meeting.peers[left]} has ended its program, but others start {what}")
        return answer["difference"]

    def _wait_for_answer(self, number: int, what: str, timeout_s: float) -> bool:
        """Returns whether the answer, or the end of the chief, came in time. The caller holds the lock."""

        def has_answer() -> bool:
            return number in self._answers or self._chief_left

        if self._changed.wait_for(has_answer, min(timeout_s, _SAID_AFTER_S)):
            return True
        if timeout_s <= _SAID_AFTER_S:
            return False
        logger.warning("waiting in %s for another process, which has not reached it", what)
        return self._changed.wait_for(has_answer, timeout_s - _SAID_AFTER_S)

    def await_loss(self) -> PeerLostError | None:
        """Waits for the report of a lost peer, after an error that a lost peer may have caused.

        Returns:
            The loss; None if all peers are alive and still train.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._loss is not None or bool(self._left), _NEWS_TIMEOUT_S)
            if self._loss is not None or not self._left:
                return self._loss
            rank = min(self._left)
        # Without this report, the others would think that this process was the first to end.
        happened = "ended its program while others still trained"
        self._post(None, {"kind": "lost", "ranks": [rank], "happened": happened})
        self._flush()
        return PeerLostError(f"{self._meeting.peers[rank]} {happened}")

    def fail(self, what: str) -> None:
        """Reports to the others that this process fails. Returns when the report is sent, or after a short timeout.

        Args:
            what: the error, in one line.
        """
        self._post(None, {"kind": "failed", "what": what})
        self._flush()

    def leave(self) -> None:
        """Reports to the others that this process's program has ended, and waits a while for theirs to end."""
        with self._changed:
            self._leaving = True
        if self._meeting.rank != 0:
            self._post(0, {"kind": "goodbye"})
        with self._changed:
            self._changed.wait_for(self._all_gone, self._meeting.timeout_s * _MAX_HOLD)
        if self._meeting.rank == 0:
            self._post(None, {"kind": "goodbye"})
            self._flush()

    @property
    def _chief_left(self) -> bool:
        return 0 in self._left

    def _all_gone(self) -> bool:
        return all(rank in self._left for rank in self._links)

    def _post(self, rank: int | None, message: Message) -> None:
        with self._changed:
            self._outbox.append((rank, message))
            self._num_posted += 1
        self._wake()

    def _flush(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._num_sent == self._num_posted, _FLUSH_TIMEOUT_S)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # the socket is full, so the thread will wake up anyway
            self._wake_writer.send(b"\0")

    def _watch(self) -> None:
        try:
            self._run()
        except Exception as error:  # without a watchdog, the process could wait forever
            logger.exception("the watchdog failed")
            self._on_loss(
                PeerLostError(
                    f"this process's own watchdog failed: {type(error).__name__}: {error}",
                    action="the process has ended, since nothing would end it if a peer was lost",
                )
            )

    def _run(self) -> None:
        passed_at = time.monotonic()
        while True:
            events = self._selector.select(self._interval_s / 2)
            now = time.monotonic()
            if now - passed_at > self._limit_s / 2:
                # This process itself was stopped for a while. Messages that arrived meanwhile are read first.
                self._heard_at = dict.fromkeys(self._heard_at, now)
            passed_at = now
            for key, _ in events:
                if key.fileobj is self._wake_reader:
                    self._wake_reader.recv(4096)
                elif key.fileobj is self._meeting.listener:
                    self._accept(now)
            self._receive(now)
            self._serve_new_connections(now)
            self._send(now)
            self._resolve_agreements()
            self._check_timeouts(now)

    def _receive(self, now: float) -> None:
        for rank, link in list(self._links.items()):
            try:
                messages = link.receive()
                if messages:
                    self._heard_at[rank] = now
                for message in messages:
                    self._handle(rank, message)
            except (WireError, KeyError, TypeError, ValueError) as error:
                self._lose([rank], f"sent an invalid message: {type(error).__name__}: {error}")
                continue
            if link.ended:
                self._forget(rank)
                if rank not in self._left and rank not in self._failures:
                    self._lose([rank], "died: its connection ended without a goodbye")

    def _forget(self, rank: int) -> None:
        link = self._links.pop(rank)
        self._heard_at.pop(rank)
        if link.fileno() >= 0:
            self._selector.unregister(link)
        link.close()

    def _handle(self, rank: int, message: Message) -> None:
        match message["kind"]:
            case "goodbye":
                self._mark_left(rank)
                self._broadcast({"kind": "left", "rank": rank}, but=rank)
            case "left":
                self._mark_left(int(message["rank"]))
            case "failed":
                self._failures.setdefault(rank, (time.monotonic(), str(message["what"])))
            case "lost":
                self._handle_loss([int(lost) for lost in message["ranks"]], str(message["happened"]), told_by=rank)
            case "agree":
                with self._changed:
                    reports = self._reports.setdefault(int(message["number"]), {})
                    reports[rank] = (str(message["what"]), [str(entry) for entry in message["entries"]])
            case "agreed":
                with self._changed:
                    self._answers[int(message["number"])] = message
                    self._changed.notify_all()
            case _:
                pass  # a heartbeat

    def _mark_left(self, rank: int) -> None:
        with self._changed:
            self._left.add(rank)
            self._changed.notify_all()

    def _handle_loss(self, ranks: list[int], happened: str, *, told_by: int) -> None:
        if self._meeting.rank not in ranks:
            self._lose(ranks, happened)
            return
        reporter, own = self._meeting.peers[told_by], self._meeting.peers[self._meeting.rank]
        loss = PeerLostError(f"{own}, which is this process, {happened}: {reporter} considered it lost and has ended")
        self._end(loss)

    def _send(self, now: float) -> None:
        with self._changed:
            outbox, self._outbox = self._outbox, []
        for rank, message in outbox:
            for other, link in self._links.items():
                if rank is None or rank == other:
                    link.send(message)
        if now - self._beat_at >= self._interval_s:
            self._beat_at = now
            self._broadcast({"kind": "beat"})
        for link in self._links.values():
            link.flush()
        if not any(link.wants_to_send for link in self._links.values()):
            with self._changed:
                self._num_sent = self._num_posted - len(self._outbox)
                self._changed.notify_all()

    def _broadcast(self, message: Message, *, but: int | None = None) -> None:
        for rank, link in self._links.items():
            if rank != but:
                link.send(message)

    def _check_timeouts(self, now: float) -> None:
        for rank, (at, what) in self._failures.items():
            # If all processes have the same fault, each of them gets a moment to report it itself.
            if rank not in self._left and now - at > _OWN_WORDS_S:
                self._lose([rank], f"failed: {what}")
        silent = [
            rank
            for rank, heard_at in self._heard_at.items()
            if now - heard_at > self._limit_s and rank not in self._left
        ]
        if silent:
            self._lose(silent, f"hangs or cannot be reached: silent for {self._limit_s:.3g} s")

    def _lose(self, ranks: Sequence[int], happened: str) -> None:
        self._broadcast({"kind": "lost", "ranks": list(ranks), "happened": happened})
        names = " and ".join(str(self._meeting.peers[rank]) for rank in ranks)
        self._end(PeerLostError(f"{names} {happened}", action="this process cannot go on alone and has ended"))

    def _end(self, loss: PeerLostError) -> None:
        with self._changed:
            if not self._leaving:  # else this process has done its work, and ends normally
                self._loss = loss
            self._changed.notify_all()
        if not self._leaving:
            self._on_loss(loss)
        with self._changed:
            self._left.update(range(len(self._meeting.peers)))
            self._changed.notify_all()

    def _resolve_agreements(self) -> None:
        if self._meeting.rank != 0:
            return
        with self._changed:
            for number, reports in list(self._reports.items()):
                absent = [rank for rank in range(len(self._meeting.peers)) if rank not in reports]
                gone = [rank for rank in absent if rank in self._left or (rank == 0 and self._leaving)]
                if not absent:
                    difference = first_difference(
                        {str(self._meeting.peers[rank]): reports[rank] for rank in sorted(reports)}
                    )
                    answer: Message = {"difference": difference}
                elif gone and reports:
                    answer = {"left": gone[0]}
                else:
                    continue
                del self._reports[number]
                self._answers[number] = answer
                self._changed.notify_all()
                self._broadcast({"kind": "agreed", "number": number, **answer})

    def _accept(self, now: float) -> None:
        assert self._meeting.listener is not None
        try:
            connection = Connection(self._meeting.listener.accept()[0])
        except OSError:
            return
        connection.send({"kind": "lockstep", "protocol": PROTOCOL, "waits_s": 0})
        self._new_connections[connection] = now
        self._selector.register(connection, selectors.EVENT_READ)

    def _serve_new_connections(self, now: float) -> None:
        for connection, came_at in list(self._new_connections.items()):
            try:
                message = connection.receive_one()
            except WireError:
                connection.ended, message = True, None
            if message is None and not connection.ended and now - came_at < self._limit_s:
                continue
            del self._new_connections[connection]
            self._selector.unregister(connection)
            if message is not None and message["kind"] == "relay" and message.get("token") == self._meeting.token:
                joining = threading.Thread(target=self._join_service, args=(connection.detach(),), daemon=True)
                joining.start()
                continue
            if message is not None and message["kind"] == "hello":
                own = self._meeting.peers[0]
                what = f"the job whose chief is {own} has all its {len(self._meeting.peers)} processes already"
                connection.send({"kind": "refused", "error": "ConfigError", "what": what})
            connection.close()

    def _join_service(self, sock: socket.socket) -> None:
        """Joins one connection to JAX's coordination service, which may still be starting."""
        deadline = time.monotonic() + _SERVICE_TIMEOUT_S
        while time.monotonic() < deadline:
            if self._relay is not None and self._service_port is not None:
                try:
                    service = socket.create_connection((LOOPBACK, self._service_port), timeout=1)
                except OSError:
                    pass
                else:
                    self._relay.join(sock, service)
                    return
            time.sleep(0.05)
        sock.close()

    def _close_in_child(self) -> None:
        # A forked child would keep the connections open after this process has died.
        for link in self._links.values():
            link.close()
        if self._meeting.listener is not None:
            self._meeting.listener.close()


_current: Watchdog | None = None


def current_watchdog() -> Watchdog | None:
    """Returns the watchdog of this process; None in a job of one process."""
    return _current


def set_current_watchdog(watchdog: Watchdog) -> None:
    """Sets the watchdog that `current_watchdog` returns."""
    global _current
    _current = watchdog
