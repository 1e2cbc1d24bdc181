"""Defines the requests for shells in replicas, and the frames between the client and the replica's runner.

A frame is a kind (one byte), a length (four bytes, big-endian) and that many bytes. Between the two ends, the stream is
forwarded unchanged, in pieces of any size.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Final, final

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from lockstep.errors import CorruptDataError, InvalidInputError

MAX_FRAME_BYTES: Final = 64 * 1024
MAX_WORDS: Final = 1000

_HEAD: Final = struct.Struct("!BI")


@final
class FrameKind(IntEnum):
    """The content of a frame."""

    START = 0
    """To the replica, once and first: a `ShellRequest` as JSON."""
    INPUT = 1
    """To the replica: typed input."""
    INPUT_END = 2
    """To the replica: the end of the input."""
    RESIZE = 3
    """To the replica: a `Terminal` as JSON, with the new size of its window."""
    OUTPUT = 10
    """From the replica: standard output; with a terminal, the whole output."""
    ERRORS = 11
    """From the replica: standard error."""
    END = 12
    """From the replica, last: a `ShellEnd` as JSON."""


@final
@dataclass(frozen=True, kw_only=True)
class Terminal:
    """The terminal of the user.

    Attributes:
        num_rows: the height of its window, in rows.
        num_columns: the width of its window, in columns.
        kind: the value of ``TERM``.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    num_rows: Annotated[int, Field(ge=1, le=10_000)] = 24
    num_columns: Annotated[int, Field(ge=1, le=10_000)] = 80
    kind: Annotated[str, Field(max_length=64)] = "xterm"


@final
@dataclass(frozen=True, kw_only=True)
class ShellRequest:
    """A request to run a command or a shell in a replica.

    Attributes:
        command: the command and its arguments; empty for a shell.
        terminal: the terminal to run it on; None for pipes.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    command: Annotated[tuple[str, ...], Field(max_length=MAX_WORDS)] = ()
    terminal: Terminal | None = None


@final
@dataclass(frozen=True, kw_only=True)
class ShellEnd:
    """How a command or shell ended.

    Attributes:
        exit_code: the exit code, as a shell reports it: 128 plus the signal's number if a signal ended it.
        problem: why there is no exit code.
    """

    exit_code: int | None = None
    problem: str | None = None


SHELL_REQUEST: Final = TypeAdapter(ShellRequest)
"""Reads and writes a `ShellRequest` as JSON."""

TERMINAL: Final = TypeAdapter(Terminal)
"""Reads and writes a `Terminal` as JSON."""

SHELL_END: Final = TypeAdapter(ShellEnd)
"""Reads and writes a `ShellEnd` as JSON."""


def parse_shell_request(data: str | bytes) -> ShellRequest:
    """Parses a request for a shell.

    Raises:
        InvalidInputError: If the data is not a valid request.
    """
    try:
        request = SHELL_REQUEST.validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InvalidInputError(f"a shell's request: {where or 'document'}: {first['msg']}") from None
    if any("\0" in word for word in request.command) or (request.command and not request.command[0]):
        raise InvalidInputError(
            "a shell's command", received=list(request.command), allowed="words, the first not empty"
        )
    return request


@final
@dataclass(frozen=True, kw_only=True)
class Frame:
    """One frame of a shell's stream.

    Attributes:
        kind: the kind of content.
        payload: the content.
    """

    kind: FrameKind
    payload: bytes = b""


def encode_frame(kind: FrameKind, payload: bytes = b"") -> bytes:
    """Returns a frame as bytes; a payload that is too long for one frame is split into several."""
    pieces = [payload[start : start + MAX_FRAME_BYTES] for start in range(0, max(1, len(payload)), MAX_FRAME_BYTES)]
    return b"".join(_HEAD.pack(kind, len(piece)) + piece for piece in pieces)


@final
class FrameReader:
    """Splits a stream of bytes into frames."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Frame]:
        """Adds the next bytes, and returns the frames that they complete.

        Raises:
            CorruptDataError: If the bytes are not frames.
        """
        self._rest += data
        frames: list[Frame] = []
        while len(self._rest) >= _HEAD.size:
            kind, length = _HEAD.unpack_from(self._rest)
            if length > MAX_FRAME_BYTES or kind not in FrameKind.__members__.values():
                raise CorruptDataError("a shell's stream contains data that is not a frame")
            end = _HEAD.size + length
            if len(self._rest) < end:
                break
            frames.append(Frame(kind=FrameKind(kind), payload=self._rest[_HEAD.size : end]))
            self._rest = self._rest[end:]
        return frames
