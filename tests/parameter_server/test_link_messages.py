"""Messages between the processes of a cluster: what can be read is read as it was, and the rest is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.parameter_server.linking import TIMEOUT_S, Serving

from lockstep.errors import CorruptDataError, InvalidInputError, UnavailableError
from lockstep.parameter_server.links import Message, Request, frames
from lockstep.parameter_server.links.client import RemoteError
from lockstep.parameter_server.links.frames import Side, read, write


def test_what_is_no_message_ends_nothing_for_others(serving: Serving) -> None:
    link, other = serving.link(), serving.link(name="worker 1")
    link._socket.send_multipart([b'{"kind": "echo", "number": 7, "places": [0, 1]}'])
    assert link.request(Message(kind="echo", fields={"a": 1})).fields == {"a": 1}
    link._socket.send_multipart([b"{", b"x"])
    with pytest.raises(UnavailableError, match="it cannot read what worker 0 has sent: a message that cannot be read"):
        link.request(Message(kind="echo"), timeout_s=TIMEOUT_S)
    assert other.request(Message(kind="echo", fields={"a": 2})).fields == {"a": 2}
    assert serving.gone == ["worker 0"]
    for one in (link, other):
        one.close()


def test_a_message_that_cannot_be_read_is_answered(serving: Serving) -> None:
    link = serving.link()
    link._number = 1
    link._socket.send_multipart([b'{"kind": "echo", "number": 1, "arrays": [["a", "complex64", [1]]]}', bytes(8)])
    with pytest.raises(RemoteError, match="an array that does not match its description; received 'complex64"):
        link.end(timeout_s=TIMEOUT_S)
    assert link.request(Message(kind="echo", fields={"a": 1})).fields == {"a": 1}, "the link is as good as before"
    link.close()


def test_who_has_not_said_who_it_is_does_not_wait_for_an_answer(serving: Serving) -> None:
    link = serving.link()
    serving.listener._peers.clear()
    with pytest.raises(UnavailableError, match="it does not know who this is"):
        link.request(Message(kind="echo"), timeout_s=TIMEOUT_S)
    link.close()


UNSENDABLE = [
    pytest.param(
        Message(kind="x", arrays={"a": np.zeros(2, np.complex64)}),
        "array 'a' of a 'x' message cannot be sent; received 'complex64'; allowed: float16, .*; convert it",
        id="complex",
    ),
    pytest.param(
        Message(kind="x", arrays={"a": np.zeros(2, "datetime64[s]")}), r"received 'datetime64\[s\]'", id="time"
    ),
    pytest.param(
        Message(kind="x", fields={"a": [0.1234567] * 1_000_000}),
        "a 'x' message has a header that is too large; received '11,000,0.. bytes'; allowed: 8,388,608 bytes",
        id="long",
    ),
    pytest.param(Message(kind="x", fields={"a": "\ud800"}), "something that cannot be sent", id="half a character"),
    pytest.param(Message(kind="x", fields={"a": 10**5000}), "something that cannot be sent", id="digits"),
]


@pytest.mark.parametrize(("message", "said"), UNSENDABLE)
def test_what_could_not_be_read_is_not_sent(serving: Serving, message: Message, said: str) -> None:
    link = serving.link()
    with pytest.raises(InvalidInputError, match=said):
        link.request(message, timeout_s=TIMEOUT_S)
    assert link.request(Message(kind="echo", fields={"a": 1})).fields == {"a": 1}
    link.close()


@pytest.mark.parametrize(("message", "said"), UNSENDABLE)
def test_an_answer_that_could_not_be_read_is_an_error_of_who_asked(message: Message, said: str) -> None:
    answering = Serving(lambda request: message if request.message.kind == "ask" else Message(kind="ok"))
    link = answering.link()
    with pytest.raises(RemoteError, match=said):
        link.request(Message(kind="ask"), timeout_s=TIMEOUT_S)
    assert link.request(Message(kind="other"), timeout_s=TIMEOUT_S).kind == "ok"
    link.close()
    answering.close()


def test_an_errors_words_travel_whatever_is_in_them() -> None:
    def fail(request: Request) -> Message:
        raise InvalidInputError("\ud800" + "x" * frames.MAX_HEADER_BYTES)

    failing = Serving(fail)
    link = failing.link()
    with pytest.raises(RemoteError, match=r"^\\ud800x{7999}$"):
        link.request(Message(kind="ask"), timeout_s=TIMEOUT_S)
    link.close()
    failing.close()


@given(
    fields=st.dictionaries(
        st.text(max_size=3),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
            max_leaves=8,
        ),
        max_size=3,
    )
)
def test_what_is_written_is_read_as_it_was(fields: dict[str, object]) -> None:
    message = Message(kind="x", fields=fields)
    (header,) = write(message, number=3, segment=None, side=Side.CLIENT)
    assert read(memoryview(header), [], segment=None, side=Side.CLIENT) == (3, message)


def test_numbers_in_another_order_of_bytes_arrive_as_the_same_numbers(serving: Serving) -> None:
    link = serving.link()
    answer = link.request(Message(kind="echo", arrays={"a": np.arange(5, dtype=">i4")}))
    np.testing.assert_array_equal(answer.arrays["a"], np.arange(5))
    link.close()


@pytest.mark.parametrize(
    ("header", "parts", "message"),
    [
        pytest.param(b"[]", [], "cannot be read", id="no object"),
        pytest.param(b'{"kind": "x"}', [], "cannot be read", id="no number"),
        pytest.param(b'{"kind": "x", "number": 1, "more": 2}', [], "cannot be read", id="unknown key"),
        pytest.param(
            b'{"kind": "x", "number": 1, "arrays": [["a", "object", [1]]]}',
            [b"x"],
            "does not match its description",
            id="kind",
        ),
        pytest.param(
            b'{"kind": "x", "number": 1, "arrays": [["a", "int8", [2]]]}',
            [b"x"],
            "does not match its description",
            id="size",
        ),
        pytest.param(
            b'{"kind": "x", "number": 1, "arrays": [["a", "int8", [-1]]]}', [b"x"], "cannot be read", id="sign"
        ),
        pytest.param(
            b'{"kind": "x", "number": 1, "arrays": [["a", "int8", [0, 1%s]]]}' % (b"0" * 30),
            [b""],
            "does not match its description",
            id="long",
        ),
        pytest.param(
            b'{"kind": "x", "number": 1, "arrays": [["a", "int8", [1%s]]]}' % (b", 1" * 64),
            [b"x"],
            "does not match its description",
            id="dims",
        ),
        pytest.param(b'{"kind": "x", "number": 1}', [b"x"], "more parts than its header lists", id="too many"),
        pytest.param(b'{"kind": "x", "number": 1, "places": [0, 9]}', [], "memory that is not shared", id="places"),
    ],
)
def test_a_message_that_lies_is_refused(header: bytes, parts: list[bytes], message: str) -> None:
    with pytest.raises(CorruptDataError, match=message):
        read(memoryview(header), [memoryview(part) for part in parts], segment=None, side=Side.CLIENT)
