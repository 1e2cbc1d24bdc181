"""Who does not know the token stays out, whatever was seen on the way of those who do."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import zmq
from tests.parameter_server.linking import SILENCE_S, TIMEOUT_S, TOKEN, Serving, echo
from zmq.utils.monitor import recv_monitor_message

from lockstep.errors import UnavailableError
from lockstep.parameter_server.links import Link, Message, Request
from lockstep.parameter_server.links.frames import Side, read, write
from lockstep.parameter_server.links.handshake import ZAP_ADDRESS


@pytest.fixture
def serving() -> Iterator[Serving]:
    made = Serving(echo)
    yield made
    made.close()


def test_who_does_not_know_the_token_does_not_come_in(serving: Serving) -> None:
    with pytest.raises(UnavailableError, match="rejects this process's token"):
        serving.link(token=b"x" * 32)
    assert serving.listener.peers == []


def test_a_listener_without_the_token_is_not_believed() -> None:
    """Whoever has taken the address must not get anything."""
    context = zmq.Context()
    door, socket = context.socket(zmq.REP), context.socket(zmq.ROUTER)
    door.bind(ZAP_ADDRESS)
    socket.plain_server = True
    port = socket.bind_to_random_port("tcp://127.0.0.1")

    def let_anybody_in() -> None:
        _, request, *_ = door.recv_multipart()
        door.send_multipart([b"1.0", request, b"200", b"OK", b"", b""])
        route, *_ = socket.recv_multipart()
        answer = Message(kind="hello", fields={"proof": "0" * 64, "shares": True})
        socket.send_multipart([route, *write(answer, number=0, segment=None, side=Side.SERVER)])

    thread = threading.Thread(target=let_anybody_in, daemon=True)
    thread.start()
    with pytest.raises(UnavailableError, match="does not know the cluster's token"):
        Link(f"127.0.0.1:{port}", peer_name="ps 0", token=TOKEN, name="w", silence_s=SILENCE_S, connect_s=TIMEOUT_S)
    thread.join(TIMEOUT_S)
    door.close(linger=0)
    socket.close(linger=0)
    context.term()


@contextlib.contextmanager
def thief_at(address: str, *, overheard: Link) -> Iterator[tuple[zmq.Socket[Any], zmq.Socket[Any]]]:
    """Somebody who shows at an address what another one has shown at its door, and what becomes of it there."""
    context = zmq.Context()
    thief = context.socket(zmq.DEALER)
    thief.plain_username, thief.plain_password = overheard._user.encode(), overheard._socket.plain_password
    monitor = thief.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_SUCCEEDED)
    thief.connect(f"tcp://{address}")
    yield thief, monitor
    thief.close(linger=0)
    monitor.close(linger=0)
    context.term()


@pytest.mark.parametrize("name", ["ps 0", "ps 1"], ids=["where it was seen", "elsewhere"])
def test_a_proof_that_was_seen_on_the_way_opens_no_door(serving: Serving, name: str) -> None:
    link = serving.link()
    at = serving if name == "ps 0" else Serving(echo, name=name)
    with thief_at(at.address, overheard=link) as (_, monitor):
        assert monitor.poll(TIMEOUT_S * 1000)
        assert recv_monitor_message(monitor)["event"] == zmq.EVENT_HANDSHAKE_FAILED_AUTH
    link.close()
    if at is not serving:
        at.close()


def test_all_that_was_seen_on_the_way_is_of_no_use_at_a_listener_that_was_started_again(
    serving: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    link = serving.link()
    (peer,) = serving.listener.peers
    seen = link._prove("client", serving.listener._challenges.of(peer.route))
    handled: list[Request] = []
    successor = Serving(handled.append)
    with thief_at(successor.address, overheard=link) as (thief, _):
        for number, message in enumerate(
            [
                Message(kind="hello"),
                Message(kind="proof", fields={"name": "worker 0", "proof": seen}),
                Message(kind="echo"),
            ]
        ):
            thief.send_multipart(write(message, number=number, segment=None, side=Side.CLIENT))
        answers: list[Message] = []
        for _ in range(3):
            assert thief.poll(TIMEOUT_S * 1000)
            header, *parts = thief.recv_multipart()
            answers.append(read(memoryview(header), parts, segment=None, side=Side.SERVER)[1])
    assert [answer.kind for answer in answers] == ["hello", "drop", "drop"]
    assert "a client of ps 0 at 127.0.0.1" in caplog.text
    assert successor.listener.peers == handled == []
    link.close()
    successor.close()


def test_who_takes_anothers_place_in_a_socket_is_not_taken_for_it(serving: Serving) -> None:
    link = serving.link()
    (peer,) = serving.listener.peers
    peer.user = "of a connection that has gone"
    with pytest.raises(UnavailableError, match="it does not know who this is"):
        link.request(Message(kind="echo"), timeout_s=TIMEOUT_S)
    link.close()


def test_a_process_that_is_not_the_one_that_is_meant_is_told_apart(serving: Serving) -> None:
    with pytest.raises(UnavailableError, match=r"worker 0 cannot reach ps 1 at .*, or is another process than ps 1"):
        serving.link(peer_name="ps 1")
