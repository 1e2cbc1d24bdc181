"""What a message is: a small header, and arrays that travel beside it as they lie in memory."""

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
"""A model of some 50,000 variables is described in this."""
DTYPES: Final = (
    *("float16", "float32", "float64", "bfloat16", "bool"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
)
"""What arrays may be of."""
MAX_PART_BYTES: Final = 64 << 20
"""Longer arrays travel in parts, of any number. Within a frame nothing else is heard of its sender, so that a long one
over a slow network would be taken for silence; and a stranger, who has not shown yet that it knows the token, can have
a process keep so much for its connection."""
MAX_TEXT_CHARACTERS: Final = 8000


@final
@dataclass(frozen=True, kw_only=True)
class Message:
    """One message, in either direction.

    Attributes:
        kind: what it is.
        fields: what else the header says: what JSON can.
        arrays: by name, in C order. Those that came are read-only, and may share memory that later messages reuse.
        is_lent: whether whoever sends it may write over the arrays as soon as it is sent.
    """

    kind: str
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])
    arrays: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict[str, "np.ndarray[Any, Any]"])
    is_lent: bool = False


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
    """Who writes into shared memory, which is in three parts: the client's, and two that the server takes in turn.

    So an answer may be read until the one after the next. What it begins with stays: nobody else can name it.
    """

    CLIENT = 0
    SERVER = 1

    def bounds(self, segment: Segment, *, number: int) -> tuple[int, int]:
        """Returns the first byte of the part that a message has, and the one after its last.

        Args:
            segment: the memory.
            number: the message's.
        """
        third = (segment.size_bytes - ALIGNMENT) // 3 // ALIGNMENT * ALIGNMENT
        part = self if self is Side.CLIENT else 1 + number % 2
        return ALIGNMENT + part * third, ALIGNMENT + (part + 1) * third


def write(message: Message, *, number: int, segment: Segment | None, side: Side) -> list[bytes | memoryview]:
    """Returns a message's frames; its arrays go into shared memory where there is some with room for them.

    What `read` would refuse is not sent at all: whoever waits for its answer would have none.

    Args:
        message: the message.
        number: the request's that it is, or answers.
        segment: the shared memory.
        side: the sender's.

    Raises:
        InvalidInputError: an array is of a dtype that does not travel, the header is too long, or it has what is no
            text or no number.
    """
    for name, array in message.arrays.items():
        if array.dtype.name not in DTYPES:
            raise InvalidInputError(
                f"array {name!r} of a {message.kind!r} message cannot travel",
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
    if message.is_lent:  # what goes through a socket goes later
        parts = [memoryview(bytes(part)) for part in parts]
    return [_write_header(header), *parts]


def _bytes_of(array: np.ndarray[Any, Any]) -> memoryview:
    native = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))  # no header says the order
    return np.ascontiguousarray(native).reshape(-1).view(np.uint8).data


def _write_header(header: Mapping[str, Any]) -> bytes:
    try:
        written = json.dumps(header, ensure_ascii=False).encode()
    except ValueError as error:  # half of a character, or a number of thousands of digits
        raise InvalidInputError(
            f"a {header['kind']!r} message has something that cannot travel",
            received=str(error),
            allowed="texts of whole characters, and numbers of up to 4,300 digits",
        ) from None
    if len(written) > MAX_HEADER_BYTES:
        raise InvalidInputError(
            f"a {header['kind']!r} message has too much beside its arrays",
            received=f"{len(written):,} bytes",
            allowed=f"{MAX_HEADER_BYTES:,} bytes: some 50,000 variables are described in this",
            action="put numbers into arrays, and have fewer and larger ones",
        )
    return written


def travelling(text: str) -> str:
    """Returns an error's words as a message can have them: not too many, and whole characters."""
    return text[:MAX_TEXT_CHARACTERS].encode(errors="backslashreplace").decode()


def number_in(header: memoryview) -> int | None:
    """Returns the number of a message that `read` refuses; None where that cannot be told either."""
    if len(header) > MAX_HEADER_BYTES:
        return None
    try:
        return _Numbered.model_validate_json(bytes(header)).number
    except ValidationError:
        return None


def read(
    header: memoryview, parts: Sequence[memoryview], *, segment: Segment | None, side: Side
) -> tuple[int, Message]:
    """Returns the number of a request and the message.

    Its arrays stay where they are, in frames or shared memory, but for those that come in several parts.

    Args:
        header: the first frame.
        parts: the others.
        segment: the shared memory.
        side: the sender's.

    Raises:
        CorruptDataError: this is no message, or it says something else of its arrays than they are.
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
        raise CorruptDataError("a message with other arrays than it says", received=f"{len(left)} parts more")
    return found.number, Message(kind=found.kind, fields=found.fields, arrays=arrays)


def _array(left: list[memoryview], dtype: str, shape: Sequence[int]) -> np.ndarray[Any, Any]:
    """Takes an array's parts off what is left, of which the last one is the next."""
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype)) if dtype in DTYPES else None
    size_bytes = 0 if kind is None else math.prod(shape) * kind.itemsize
    parts = [left.pop()] if left else []
    while left and sum(part.nbytes for part in parts) < size_bytes:
        parts.append(left.pop())
    found_bytes = sum(part.nbytes for part in parts)
    if kind is None or not parts or found_bytes != size_bytes:
        raise CorruptDataError(
            "an array that is not what it says", received=f"{dtype} {list(shape)}, {found_bytes} bytes"
        )
    flat = np.frombuffer(parts[0] if len(parts) == 1 else b"".join(parts), dtype=kind)
    flat.flags.writeable = False
    try:
        return flat.reshape(shape)
    except (ValueError, OverflowError) as error:  # of too many dims, or none of NumPy's
        raise CorruptDataError("an array that is not what it says", received=f"{dtype}, {error}") from None
