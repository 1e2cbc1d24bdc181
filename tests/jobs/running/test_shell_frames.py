"""What travels between whoever types and a replica's shell."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.errors import CorruptDataError, InvalidInputError
from lockstep.jobs.running.shell_frames import (
    MAX_FRAME_BYTES,
    Frame,
    FrameKind,
    FrameReader,
    ShellRequest,
    Terminal,
    encode_frame,
    parse_shell_request,
)

FRAMES = st.builds(lambda kind, payload: Frame(kind=kind, payload=payload), st.sampled_from(FrameKind), st.binary())


@given(frames=st.lists(FRAMES, max_size=5), cuts=st.lists(st.integers(1, 9), max_size=20))
def test_frames_are_found_wherever_the_stream_is_cut(frames: list[Frame], cuts: list[int]) -> None:
    stream = b"".join(encode_frame(frame.kind, frame.payload) for frame in frames)
    reader, found = FrameReader(), []
    for cut in cuts:
        found += reader.feed(stream[:cut])
        stream = stream[cut:]
    assert found + reader.feed(stream) == frames


def test_what_is_too_long_for_one_frame_becomes_several() -> None:
    frames = FrameReader().feed(encode_frame(FrameKind.OUTPUT, b"x" * (MAX_FRAME_BYTES + 1)))
    assert [len(frame.payload) for frame in frames] == [MAX_FRAME_BYTES, 1]
    assert FrameReader().feed(encode_frame(FrameKind.INPUT_END)) == [Frame(kind=FrameKind.INPUT_END)]


@pytest.mark.parametrize("stream", [b"\x00\xff\xff\xff\xff", b"\x07\x00\x00\x00\x00", b"GET / HTTP/1.1"])
def test_what_is_no_frame_is_refused(stream: bytes) -> None:
    with pytest.raises(CorruptDataError):
        FrameReader().feed(stream)


def test_a_request_is_read() -> None:
    text = json.dumps({"command": ["ls", "-l"], "terminal": {"num_rows": 50, "num_columns": 200, "kind": "xterm"}})
    assert parse_shell_request(text) == ShellRequest(
        command=("ls", "-l"), terminal=Terminal(num_rows=50, num_columns=200, kind="xterm")
    )
    assert parse_shell_request("{}") == ShellRequest()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"comand": []}',
        '{"command": "ls"}',
        '{"command": ["a\\u0000b"]}',
        '{"command": [""]}',
        '{"terminal": {"num_rows": 0}}',
        '{"terminal": {"rows": 5}}',
        json.dumps({"command": ["x"] * 1001}),
    ],
    ids=["empty", "list", "unknown", "text", "null-byte", "empty-word", "no-rows", "unknown-size", "long"],
)
def test_another_request_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(InvalidInputError, match=r"^[^\n]+$"):
        parse_shell_request(text)
