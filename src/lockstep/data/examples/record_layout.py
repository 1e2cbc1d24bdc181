"""Record layouts: which bytes of a ``tf.train.Example`` are values, and which say where and what they are.

Records of one layout differ in their values alone: lengths, names and tags are the same bytes at the same places. One
is read byte by byte here (by the wire format of protocol buffers, https://protobuf.dev/programming-guides/encoding);
of all others of its length it is then enough to compare those bytes, and the values of a feature are the same places
in each. What is not read here, as unusual or as damaged, is no error: it is left to the protocol buffers' own parser.
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
"""Names of the fields of ``tf.train.Feature``, which has one of them."""

_CONTINUES: Final = 0x80
_MAX_VARINT_BYTES: Final = 10


class _UnusualError(Exception):
    """The record is not built as TensorFlow and this package build them."""


@final
@dataclass(kw_only=True)
class Places:
    """Where the values of one feature lie.

    Attributes:
        kind: the list that they are in.
        spans: runs of bytes: of each bytes value one, and of numbers that follow each other one, as (start, size).
        continues: of integers, for each byte of the spans whether the number goes on after it: bool.
    """

    kind: str
    spans: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    continues: np.ndarray | None = None


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class RecordLayout:
    """Where everything lies in the records of one length that are built alike.

    Attributes:
        length: how long such a record is, in bytes.
        features: by name where the values are; a feature without a kind has none and is not here.
        unset: names of the features without a kind.
    """

    length: int
    features: dict[str, Places]
    unset: frozenset[str]
    _fixed: tuple[tuple[int, np.ndarray], ...]

    def matches(self, rows: np.ndarray, *, names: Iterable[str]) -> np.ndarray:
        """Says which records have this layout.

        Args:
            rows: the bytes of records of this layout's length, uint8 of shape (k, length).
            names: the features whose values are wanted; of others' integers it does not matter how many there are.

        Returns:
            bool of shape (k,).
        """
        found = np.ones(len(rows), bool)
        for start, expected in self._fixed:
            found &= (rows[:, start : start + expected.size] == expected).all(axis=1)
        for name in names:
            places = self.features.get(name)
            if places is not None and places.continues is not None:
                found &= ((take_spans(rows, places.spans) >= _CONTINUES) == places.continues).all(axis=1)
        return found


def take_spans(rows: np.ndarray, spans: Sequence[tuple[int, int]]) -> np.ndarray:
    """Returns runs of bytes of records behind each other: uint8 of shape (k, bytes of all runs)."""
    parts = [rows[:, start : start + size] for start, size in spans]
    return parts[0] if len(parts) == 1 else np.concatenate([rows[:, :0], *parts], axis=1)


def read_layout(data: bytes) -> RecordLayout | None:
    """Reads the layout of a record; None where it is not built as usual.

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


def _fixed_runs(data: bytes, features: dict[str, Places]) -> Iterator[tuple[int, np.ndarray]]:
    """Yields all that is between the values, with where it begins."""
    end = 0
    for start, size in sorted(span for places in features.values() for span in places.spans):
        if start > end:
            yield end, np.frombuffer(data[end:start], np.uint8)
        end = start + size
    if end < len(data):
        yield end, np.frombuffer(data[end:], np.uint8)


@final
class _Reader:
    """Goes through one record."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.features: dict[str, Places] = {}
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
        """Yields the fields of a message that are length-delimited, as all of these messages are."""
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
            value |= (byte & ~_CONTINUES) << shift
            if byte < _CONTINUES:
                return value, start
            shift += 7

    def _read_entry(self, start: int, end: int) -> None:
        fields = list(self._messages(start, end))
        if [number for number, *_ in fields] not in ([1, 2], [2, 1]):
            raise _UnusualError
        (_, name_start, name_end), (_, value_start, value_end) = sorted(fields)
        name = self._data[name_start:name_end].decode()
        if name in self.features or name in self.unset:
            raise _UnusualError  # the later one counts, but why are there two?
        lists = list(self._messages(value_start, value_end))
        if not lists:
            self.unset.add(name)
            return
        if len(lists) > 1 or lists[0][0] not in KIND_OF_FIELD:
            raise _UnusualError
        field_number, list_start, list_end = lists[0]
        places = Places(kind=KIND_OF_FIELD[field_number])
        self.features[name] = places
        if places.kind == "bytes_list":
            places.spans = [self._checked(number, a, b) for number, a, b in self._messages(list_start, list_end)]
        else:
            places.spans = list(self._numbers(list_start, list_end, places.kind))
        if places.kind == "int64_list":
            joined = b"".join(self._data[a : a + size] for a, size in places.spans)
            places.continues = np.frombuffer(joined, np.uint8) >= _CONTINUES
            _check_integers(places)

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


def _check_integers(places: Places) -> None:
    """Refuses integers that run on over the end of their run, or for more bytes than 64 bits take."""
    assert places.continues is not None
    at = 0
    for _, size in places.spans:
        run = places.continues[at : at + size]
        if size and run[-1]:
            raise _UnusualError
        at += size
    ends = np.flatnonzero(~places.continues)
    if ends.size and np.diff(ends, prepend=-1).max() > _MAX_VARINT_BYTES:
        raise _UnusualError


def decode_integers(values: np.ndarray, continues: np.ndarray) -> np.ndarray:
    """Decodes integers of variable length that have the same number of bytes in each row.

    Args:
        values: their bytes, uint8 of shape (k, num_bytes).
        continues: for each byte whether the number goes on after it, bool of shape (num_bytes,).

    Returns:
        int64 of shape (k, num_values).
    """
    if not continues.any():
        return values.astype(np.int64)
    ends = np.flatnonzero(~continues)
    begins = np.concatenate([[0], ends[:-1] + 1])
    shifts = 7 * (np.arange(len(continues)) - np.repeat(begins, ends - begins + 1))
    wide = (values & (_CONTINUES - 1)).astype(np.uint64) << shifts.astype(np.uint64)
    return np.add.reduceat(wide, begins, axis=1).view(np.int64)
