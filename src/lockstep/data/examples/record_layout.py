"""Record layouts: which bytes of a ``tf.train.Example`` are values, and which are names, lengths and tags.

Records of the same layout differ only in their values: names, lengths and tags are the same bytes at the same
positions. The layout of one record is read byte by byte (see https://protobuf.dev/programming-guides/encoding for the
wire format). For other records of the same length, comparing these bytes is enough: then, the values of each feature
are at the same positions. Unusual and damaged records are no error here; the protobuf library decodes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, final

import numpy as np

_VARINT: Final = 0
_FIXED64: Final = 1
_LENGTH_DELIMITED: Final = 2
_FIXED32: Final = 5
KIND_OF_FIELD: Final = {1: "bytes_list", 2: "float_list", 3: "int64_list"}
"""The kinds of lists in a ``tf.train.Feature``, by field number; a feature has at most one of them."""

_CONTINUATION_BIT: Final = 0x80
_MAX_VARINT_BYTES: Final = 10


class _UnusualError(Exception):
    """The record is not encoded as TensorFlow and this package encode records, or is damaged."""


@final
@dataclass(kw_only=True)
class ValuePositions:
    """The positions of one feature's values in a record.

    Attributes:
        kind: the kind of list that contains the values.
        spans: runs of bytes as (start, size): one for each bytes value, and one for consecutive numbers.
        has_continuation: for each byte of the spans of integers, whether its number continues in the next byte, bool;
            None for other kinds.
    """

    kind: str
    spans: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    has_continuation: np.ndarray | None = None


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class RecordLayout:
    """The layout of records that have the same length and differ only in their values.

    Attributes:
        length: the length of a record in bytes.
        features: the positions of the values by feature name, for features with a kind.
        unset: the names of the features without a kind, which have no values.
    """

    length: int
    features: dict[str, ValuePositions]
    unset: frozenset[str]
    _fixed: tuple[tuple[int, np.ndarray], ...]

    def matches(self, rows: np.ndarray, *, names: Iterable[str]) -> np.ndarray:
        """Tells which records have this layout.

        Args:
            rows: the bytes of records of this layout's length, uint8 of shape (k, length).
            names: the features to read. The numbers of integers in other features need not match.

        Returns:
            Whether each record has this layout, bool of shape (k,).
        """
        found = np.ones(len(rows), bool)
        for start, expected in self._fixed:
            found &= (rows[:, start : start + expected.size] == expected).all(axis=1)
        for name in names:
            positions = self.features.get(name)
            if positions is not None and positions.has_continuation is not None:
                has_continuation = take_spans(rows, positions.spans) >= _CONTINUATION_BIT
                found &= (has_continuation == positions.has_continuation).all(axis=1)
        return found


def take_spans(rows: np.ndarray, spans: Sequence[tuple[int, int]]) -> np.ndarray:
    """Returns the same runs of bytes of each record, concatenated: uint8 of shape (k, bytes of all runs)."""
    parts = [rows[:, start : start + size] for start, size in spans]
    return parts[0] if len(parts) == 1 else np.concatenate([rows[:, :0], *parts], axis=1)


def read_layout(data: bytes) -> RecordLayout | None:
    """Reads the layout of a record; returns None if the record is unusual or damaged.

    Args:
        data: the bytes of a ``tf.train.Example``.
    """
    reader = _Reader(data)
    try:
        reader.read_example()
    except (_UnusualError, IndexError, UnicodeDecodeError):
        return None
    return RecordLayout(
        length=len(data),
        features=reader.features,
        unset=frozenset(reader.unset),
        _fixed=tuple(_fixed_runs(data, reader.features)),
    )


def _fixed_runs(data: bytes, features: dict[str, ValuePositions]) -> Iterator[tuple[int, np.ndarray]]:
    """Yields the runs of bytes between the values, each with its start."""
    end = 0
    for start, size in sorted(span for positions in features.values() for span in positions.spans):
        if start > end:
            yield end, np.frombuffer(data[end:start], np.uint8)
        end = start + size
    if end < len(data):
        yield end, np.frombuffer(data[end:], np.uint8)


@final
class _Reader:
    """Reads the positions of the values in one record."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.features: dict[str, ValuePositions] = {}
        self.unset: set[str] = set()

    def read_example(self) -> None:
        for field_number, start, end in self._messages(0, len(self._data)):
            if field_number != 1:
                raise _UnusualError
            for entry_number, entry_start, entry_end in self._messages(start, end):
                if entry_number != 1:
                    raise _UnusualError
                self._read_entry(entry_start, entry_end)

    def _messages(self, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yields the number, start and end of each field of a message, all of which must be length-delimited."""
        while start < end:
            tag, start = self._varint(start, end)
            if tag & 7 != _LENGTH_DELIMITED:
                raise _UnusualError
            size, start = self._varint(start, end)
            if start + size > end:
                raise _UnusualError
            yield tag >> 3, start, start + size
            start += size

    def _varint(self, start: int, end: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            if start >= end or shift > 63:
                raise _UnusualError
            byte = self._data[start]
            start += 1
            value |= (byte & ~_CONTINUATION_BIT) << shift
            if byte < _CONTINUATION_BIT:
                return value, start
            shift += 7

    def _read_entry(self, start: int, end: int) -> None:
        fields = list(self._messages(start, end))
        if [number for number, *_ in fields] not in ([1, 2], [2, 1]):
            raise _UnusualError
        (_, name_start, name_end), (_, value_start, value_end) = sorted(fields)
        name = self._data[name_start:name_end].decode()
        if name in self.features or name in self.unset:
            raise _UnusualError  # in the protobuf format, the later one counts
        lists = list(self._messages(value_start, value_end))
        if not lists:
            self.unset.add(name)
            return
        if len(lists) > 1 or lists[0][0] not in KIND_OF_FIELD:
            raise _UnusualError
        field_number, list_start, list_end = lists[0]
        positions = ValuePositions(kind=KIND_OF_FIELD[field_number])
        self.features[name] = positions
        if positions.kind == "bytes_list":
            positions.spans = [self._checked(number, a, b) for number, a, b in self._messages(list_start, list_end)]
        else:
            positions.spans = list(self._numbers(list_start, list_end, positions.kind))
        if positions.kind == "int64_list":
            joined = b"".join(self._data[a : a + size] for a, size in positions.spans)
            positions.has_continuation = np.frombuffer(joined, np.uint8) >= _CONTINUATION_BIT
            _check_integers(positions)

    @staticmethod
    def _checked(number: int, start: int, end: int) -> tuple[int, int]:
        if number != 1:
            raise _UnusualError
        return start, end - start

    def _numbers(self, start: int, end: int, kind: str) -> Iterator[tuple[int, int]]:
        while start < end:
            tag, start = self._varint(start, end)
            if tag >> 3 != 1:
                raise _UnusualError
            if tag & 7 == _LENGTH_DELIMITED:  # packed
                size, start = self._varint(start, end)
                if kind == "float_list" and size % 4:
                    raise _UnusualError
            elif (tag & 7, kind) == (_FIXED32, "float_list"):
                size = 4
            elif (tag & 7, kind) == (_VARINT, "int64_list"):
                size = self._varint(start, end)[1] - start
            else:
                raise _UnusualError
            if start + size > end:
                raise _UnusualError
            yield start, size
            start += size


def _check_integers(positions: ValuePositions) -> None:
    """Rejects integers that continue beyond the end of their run, or that take more bytes than a 64-bit varint has."""
    assert positions.has_continuation is not None
    at = 0
    for _, size in positions.spans:
        run = positions.has_continuation[at : at + size]
        if size and run[-1]:
            raise _UnusualError
        at += size
    ends = np.flatnonzero(~positions.has_continuation)
    if ends.size and np.diff(ends, prepend=-1).max() > _MAX_VARINT_BYTES:
        raise _UnusualError


def decode_integers(values: np.ndarray, has_continuation: np.ndarray) -> np.ndarray:
    """Decodes varints that have the same numbers of bytes in each row.

    Args:
        values: the bytes of the varints, uint8 of shape (k, num_bytes).
        has_continuation: for each byte, whether its number continues in the next byte, bool of shape (num_bytes,).

    Returns:
        The integers, int64 of shape (k, num_values).
    """
    if not has_continuation.any():
        return values.astype(np.int64)
    ends = np.flatnonzero(~has_continuation)
    begins = np.concatenate([[0], ends[:-1] + 1])
    shifts = 7 * (np.arange(len(has_continuation)) - np.repeat(begins, ends - begins + 1))
    wide = (values & (_CONTINUATION_BIT - 1)).astype(np.uint64) << shifts.astype(np.uint64)
    return np.add.reduceat(wide, begins, axis=1).view(np.int64)
