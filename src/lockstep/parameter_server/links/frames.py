"""The format of messages: a small header, followed by arrays as they are in memory."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated, Any, Final, final

import ml_dtypes
import numpy as np
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from lockstep.errors import CorruptDataError, InvalidInputError
from lockstep.parameter_server.links.segments import ALIGNMENT, Segment

MAX_HEADER_BYTES: Final = 8 << 20
"""The maximum size of a header, in bytes. It is enough to describe a model of about 50,000 variables."""
DTYPES: Final = (
    *("float16", "float32", "float64", "bfloat16", "bool"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
)
"""The dtypes that arrays may have."""
MAX_PART_BYTES: Final = 64 << 20
"""The maximum size of a frame, in bytes. Longer arrays are sent in several parts.

Nothing else arrives from a sender while one of its frames arrives, so a long frame over a slow network would be taken
for silence. This is also the memory that a connection can occupy before it has proved that it knows the token.
"""
MAX_TEXT_CHARACTERS: Final = 8000


@final
@dataclass(frozen=True, kw_only=True)
class Message:
    """One message, in either direction.

    Attributes:
        kind: the kind of message.
        fields: the other fields of the header, which must be valid JSON.
        arrays: the arrays by name, in C order. Received arrays are read-only, and may be in memory that later messages
            reuse.
        may_be_overwritten: whether the sender may overwrite the arrays as soon as the message is sent.
    """

    kind: str
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])
    arrays: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict[str, "np.ndarray[Any, Any]"])
    may_be_overwritten: bool = False


_Size = Annotated[int, Field(ge=0, strict=True)]


@final
class _Header(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    kind: str
    fields: dict[str, Any] = {}
    number: int
    arrays: list[tuple[str, str, list[_Size]]] = []
    places: list[_Size] | None = None


_HEADER: Final = TypeAdapter(_Header)


@final
class _Numbered(BaseModel):
    number: Annotated[int, Field(strict=True)]


@final
class Side(IntEnum):
    """The side that writes into shared memory.

    The memory has three parts: one for the client, and two that the server uses alternately, so that an answer is valid
    until the answer after the next one. The proof at the beginning of the memory is never overwritten.
    """

    CLIENT = 0
    SERVER = 1

    def bounds(self, segment: Segment, *, number: int) -> tuple[int, int]:
        """Returns the first byte of the part that a message uses, and the byte after its last one.

        Args:
            segment: the shared memory.
            number: the number of the message.
        """
        third = (segment.size_bytes - ALIGNMENT) // 3 // ALIGNMENT * ALIGNMENT
        part = self if self is Side.CLIENT else 1 + number % 2
        return ALIGNMENT + part * third, ALIGNMENT + (part + 1) * third


def write(message: Message, *, number: int, segment: Segment | None, side: Side) -> list[bytes | memoryview]:
    """Returns the frames of a message. Its arrays are put into shared memory, if there is any with enough room.

    A message that `read` would reject is not sent, because its sender would wait in vain for an answer.

    Args:
        message: the message.
        number: the number of the request that the message is, or answers.
        segment: the shared memory; None if there is none.
        side: the side of the sender.

    Raises:
        InvalidInputError: an array has a dtype that cannot be sent, the header is too long, or the header has a text or
            number that JSON cannot encode.
    """
    for name, array in message.arrays.items():
        if array.dtype.name not in DTYPES:
            raise InvalidInputError(
                f"array {name!r} of a {message.kind!r} message cannot be sent",
                received=str(array.dtype),
                allowed=DTYPES,
                action="convert it",
            )
    arrays = [[name, array.dtype.name, array.shape] for name, array in message.arrays.items()]
    header = {"kind": message.kind, "fields": dict(message.fields), "number": number, "arrays": arrays}
    parts = [_bytes_of(array) for array in message.arrays.values()]
    if segment is not None and parts:
        start, end = side.bounds(segment, number=number)
        header["places"] = segment.put(parts, start=start, end=end)
        if header["places"] is not None:
            parts = []
    parts = [part[at : at + MAX_PART_BYTES] for part in parts for at in range(0, max(1, len(part)), MAX_PART_BYTES)]
    if message.may_be_overwritten:  # the socket sends them later
        parts = [memoryview(bytes(part)) for part in parts]
    return [_write_header(header), *parts]


def _bytes_of(array: np.ndarray[Any, Any]) -> memoryview:
    native = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))  # the header has no order
    return np.ascontiguousarray(native).reshape(-1).view(np.uint8).data


def _write_header(header: Mapping[str, Any]) -> bytes:
    try:
        written = json.dumps(header, ensure_ascii=False).encode()
    except ValueError as error:  # a lone surrogate, or a number with thousands of digits
        raise InvalidInputError(
            f"a {header['kind']!r} message has something that cannot be sent",
            received=str(error),
            allowed="texts without lone surrogates, and numbers of up to 4,300 digits",
        ) from None
    if len(written) > MAX_HEADER_BYTES:
        raise InvalidInputError(
            f"a {header['kind']!r} message has a header that is too large",
            received=f"{len(written):,} bytes",
            allowed=f"{MAX_HEADER_BYTES:,} bytes, enough to describe about 50,000 variables",
            action="put numbers into arrays, and use fewer and larger ones",
        )
    return written


def sendable_text(text: str) -> str:
    """Returns the text of an error in a form that can be sent: not too long, and without lone surrogates."""
    return text[:MAX_TEXT_CHARACTERS].encode(errors="backslashreplace").decode()


def number_in(header: memoryview) -> int | None:
    """Returns the number of a message that `read` rejects; None if it cannot be read either."""
    if len(header) > MAX_HEADER_BYTES:
        return None
    try:
        return _Numbered.model_validate_json(bytes(header)).number
    except ValidationError:
        return None


def read(
    header: memoryview, parts: Sequence[memoryview], *, segment: Segment | None, side: Side
) -> tuple[int, Message]:
    """Returns the number of a request, and its message.

    Its arrays are not copied out of the frames or the shared memory, except those that arrive in several parts.

    Args:
        header: the first frame.
        parts: the other frames.
        segment: the shared memory; None if there is none.
        side: the side of the sender.

    Raises:
        CorruptDataError: the frames are not a message, or the arrays do not match the header.
    """
    if len(header) > MAX_HEADER_BYTES:
        raise CorruptDataError("a message with too long a header", received=f"{len(header)} bytes")
    try:
        found = _HEADER.validate_json(bytes(header))
    except ValidationError as error:
        raise CorruptDataError("a message that cannot be read", received=error.errors()[0]["msg"]) from None
    if found.places is not None:
        if segment is None:
            raise CorruptDataError("a message in memory that is not shared")
        start, end = side.bounds(segment, number=found.number)
        parts = segment.get(found.places, start=start, end=end)
    left = list(reversed(parts))
    arrays = {name: _array(left, dtype, shape) for name, dtype, shape in found.arrays}
    if left:
        raise CorruptDataError("a message with more parts than its header lists", received=f"{len(left)} parts more")
    return found.number, Message(kind=found.kind, fields=found.fields, arrays=arrays)


def _array(left: list[memoryview], dtype: str, shape: Sequence[int]) -> np.ndarray[Any, Any]:
    """Takes the parts of one array from `left`, whose last element is the next part."""
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype)) if dtype in DTYPES else None
    size_bytes = 0 if kind is None else math.prod(shape) * kind.itemsize
    parts = [left.pop()] if left else []
    while left and sum(part.nbytes for part in parts) < size_bytes:
        parts.append(left.pop())
    found_bytes = sum(part.nbytes for part in parts)
    if kind is None or not parts or found_bytes != size_bytes:
        raise CorruptDataError(
            "an array that does not match its description", received=f"{dtype} {list(shape)}, {found_bytes} bytes"
        )
    flat = np.frombuffer(parts[0] if len(parts) == 1 else b"".join(parts), dtype=kind)
    flat.flags.writeable = False
    try:
        return flat.reshape(shape)
    except (ValueError, OverflowError) as error:  # more dimensions than NumPy allows, or an invalid shape
        raise CorruptDataError("an array that does not match its description", received=f"{dtype}, {error}") from None
