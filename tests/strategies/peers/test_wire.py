"""Messages over a connection: whole, bounded, and nothing but JSON objects."""

import contextlib
import socket

import pytest

from lockstep.strategies.peers.wire import MAX_MESSAGE_BYTES, Connection, WireError, split_address


@pytest.fixture
def pair():
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    connections = Connection(one), Connection(other)
    yield connections
    for connection in connections:
        connection.close()


def receive_all(connection, count):
    messages = []
    while len(messages) < count and not connection.ended:
        messages += connection.receive()
    return messages


def test_messages_come_whole_and_in_order(pair):
    sent = [{"kind": "a", "number": number, "text": "é" * number} for number in range(200)]
    for message in sent:
        pair[0].send(message)
    assert receive_all(pair[1], len(sent)) == sent


def test_a_message_larger_than_the_sockets_buffers_leaves_in_parts(pair):
    message = {"kind": "a", "text": "x" * (MAX_MESSAGE_BYTES - 100)}
    pair[0].send(message)
    assert pair[0].wants_to_send
    messages = []
    while not messages:
        pair[0].flush()
        messages = pair[1].receive()
    assert messages == [message]
    assert not pair[0].wants_to_send


def test_a_longer_line_is_refused(pair):
    sender = pair[0].detach()
    sender.setblocking(True)
    sender.settimeout(0.05)

    def send_on():
        for _ in range(MAX_MESSAGE_BYTES // 65536 + 100):
            with contextlib.suppress(TimeoutError):  # the other side's buffer is full
                sender.send(b"x" * 65536)
            pair[1].receive()

    with pytest.raises(WireError, match="a message of more than"):
        send_on()


@pytest.mark.parametrize("line", [b"GET / HTTP/1.1", b"[]", b"1", b"{}", b'{"kind": 1}', b"\xff\xfe"])
def test_what_is_no_message_is_refused(pair, line):
    pair[0].detach().send(line + b"\n")
    with pytest.raises(WireError, match="not "):
        receive_all(pair[1], 1)


def test_what_follows_the_first_message_stays_unread(pair):
    pair[0].detach().send(b'{"kind": "relay"}\nbytes of another kind')
    message = None
    while message is None:
        message = pair[1].receive_one()
    assert message == {"kind": "relay"}
    raw = pair[1].detach()
    raw.setblocking(True)
    assert raw.recv(100) == b"bytes of another kind"


def test_last_words_are_heard_after_sending_has_failed(pair):
    pair[0].send({"kind": "last"})
    pair[0].close()
    for _ in range(3):
        pair[1].send({"kind": "beat"})  # the other side answers these with a reset
    assert receive_all(pair[1], 1) == [{"kind": "last"}]
    while not pair[1].ended:
        assert pair[1].receive() == []


@pytest.mark.parametrize(("address", "parts"), [("a:1", ("a", 1)), ("[::1]:22", ("::1", 22))])
def test_addresses(address, parts):
    assert split_address(address) == parts
