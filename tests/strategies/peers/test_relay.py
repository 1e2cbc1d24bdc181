"""Bytes pass between pairs of sockets, and a kept end does not learn that the other one has gone."""

import contextlib
import hashlib
import socket
import struct
import threading

import pytest

from lockstep.strategies.peers.relay import Relay


def connected_pair():
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname(), timeout=10)
        other, _ = server.accept()
    return one, other


@pytest.fixture
def ends():
    """The two outer ends of a relayed connection, the first of which is kept."""
    outer, inner = connected_pair()
    far_inner, far_outer = connected_pair()
    Relay().join(inner, far_inner, keep=inner)
    far_outer.settimeout(10)
    yield outer, far_outer
    outer.close()
    far_outer.close()


def test_bytes_pass_both_ways(ends):
    sent = bytes(range(256)) * 40_000  # more than the relay holds at once
    digest = hashlib.sha256()

    def read():
        left = len(sent)
        while left:
            part = ends[1].recv(65536)
            digest.update(part)
            left -= len(part)

    reader = threading.Thread(target=read)
    reader.start()
    ends[0].sendall(sent)
    reader.join(20)
    assert digest.digest() == hashlib.sha256(sent).digest()
    ends[1].sendall(b"answer")
    assert ends[0].recv(100) == b"answer"


def test_a_kept_end_stays_open_and_silent(ends):
    ends[1].sendall(b"last words")
    ends[1].close()
    assert ends[0].recv(100) == b"last words"
    ends[0].settimeout(0.3)
    with pytest.raises(TimeoutError):
        ends[0].recv(100)
    ends[0].sendall(b"nobody hears this")


def test_the_other_end_closes_with_the_kept_one(ends):
    ends[0].close()
    assert ends[1].recv(100) == b""


def test_what_was_sent_before_the_end_arrives_and_the_relay_goes_on():
    outer, inner = connected_pair()
    far_inner, far_outer = connected_pair()
    relay = Relay()
    relay.join(inner, far_inner)
    sent = b"x" * 900_000  # more than the sockets hold, less than the relay does
    outer.sendall(sent)
    outer.close()
    threading.Event().wait(0.2)  # the relay meets the end with bytes still to send
    far_outer.settimeout(10)
    received = b""
    while part := far_outer.recv(65536):
        received += part
    far_outer.close()
    assert received == sent
    assert_passes(relay)


def test_an_end_that_is_reset_leaves_the_others_alone():
    outer, inner = connected_pair()
    far_inner, far_outer = connected_pair()
    relay = Relay()
    relay.join(inner, far_inner)
    far_outer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    outer.sendall(b"x" * 900_000)
    far_outer.close()  # a reset: what the relay writes next fails
    with contextlib.suppress(OSError):
        outer.sendall(b"x" * 900_000)
    outer.close()
    assert_passes(relay)


def assert_passes(relay):
    one, inner = connected_pair()
    far_inner, other = connected_pair()
    relay.join(inner, far_inner)
    other.settimeout(10)
    with one, other:
        one.sendall(b"hello")
        assert other.recv(100) == b"hello"


def test_a_listener_opens_the_other_end_for_each_connection():
    opened = []

    def open_other():
        inner, outer = connected_pair()
        opened.append(outer)
        return inner

    port = Relay().listen(open_other)
    with socket.create_connection(("127.0.0.1", port), timeout=10) as caller:
        caller.sendall(b"hello")
        while not opened:
            threading.Event().wait(0.01)
        opened[0].settimeout(10)
        assert opened[0].recv(100) == b"hello"
    assert opened[0].recv(100) == b""
    opened[0].close()


def test_where_nobody_answers_the_caller_is_left_waiting():
    port = Relay().listen(lambda: None)
    with socket.create_connection(("127.0.0.1", port), timeout=0.3) as caller, pytest.raises(TimeoutError):
        caller.recv(1)
