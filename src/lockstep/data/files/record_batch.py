"""The records of a batch as positions in a few buffers, without a Python object for each record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import SupportsIndex, final, overload

import numpy as np

from lockstep.errors import InvalidInputError


@final
class RecordBatch(Sequence[bytes]):
    """A sequence of records that are stored in shared buffers. A ``bytes`` object is made only when it is requested.

    Args:
        buffers: arrays of uint8, each of one dimension: mapped files, or bytes that were read.
        buffer_of: the number of each record's buffer, integers of shape (num_records,).
        starts: the offset of each record in its buffer, in bytes, int64 of shape (num_records,).
        lengths: the length of each record, in bytes, int64 of shape (num_records,).
    """

    def __init__(
        self, buffers: Sequence[np.ndarray], *, buffer_of: np.ndarray, starts: np.ndarray, lengths: np.ndarray
    ) -> None:
        self._buffers = tuple(buffers)
        self._buffer_of = buffer_of
        self._starts = starts
        self.lengths = lengths

    @classmethod
    def of(cls, records: Iterable[bytes]) -> RecordBatch:
        """Returns separate records as a batch; a `RecordBatch` is returned unchanged.

        Raises:
            InvalidInputError: ``records`` is not an iterable of bytes.
        """
        if isinstance(records, RecordBatch):
            return records
        if isinstance(records, bytes | bytearray | memoryview):
            raise InvalidInputError(
                "the records of a batch",
                received=f"one of {len(records)} bytes",
                allowed="a sequence of bytes",
                action="map batches of records rather than records, or give [record]",
            )
        if not isinstance(records, Iterable):
            raise InvalidInputError("the records of a batch", received=f"{records}", allowed="a sequence of bytes")
        parts = list(records)
        others = {kind for kind in set(map(type, parts)) if not issubclass(kind, bytes | bytearray | memoryview)}
        if others:
            number = next(number for number, part in enumerate(parts) if type(part) in others)
            raise InvalidInputError(
                f"record {number} of a batch is not bytes", received=f"{parts[number]!r}", allowed="bytes"
            )
        lengths = np.fromiter(map(len, parts), np.int64, len(parts))
        buffer = np.frombuffer(b"".join(parts), np.uint8)
        starts = np.cumsum(lengths) - lengths
        return cls([buffer], buffer_of=np.zeros(len(parts), np.intp), starts=starts, lengths=lengths)

    def __len__(self) -> int:
        """Returns the number of records."""
        return len(self.lengths)

    @overload
    def __getitem__(self, index: SupportsIndex) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> RecordBatch: ...
    def __getitem__(self, index: SupportsIndex | slice) -> bytes | RecordBatch:
        """Returns one record's bytes, or a slice of the records as a batch."""
        if isinstance(index, slice):
            return RecordBatch(
                self._buffers,
                buffer_of=self._buffer_of[index],
                starts=self._starts[index],
                lengths=self.lengths[index],
            )
        number = index.__index__()
        start = int(self._starts[number])
        return self._buffers[self._buffer_of[number]][start : start + int(self.lengths[number])].tobytes()

    def joined(self, numbers: np.ndarray) -> np.ndarray:
        """Copies records into one array, one after the other.

        Args:
            numbers: the numbers of the records, integers of shape (k,).

        Returns:
            The concatenated records, uint8 of one dimension.
        """
        views = [buffer.data for buffer in self._buffers]
        starts, lengths = self._starts[numbers], self.lengths[numbers]
        places = zip(self._buffer_of[numbers].tolist(), starts.tolist(), (starts + lengths).tolist(), strict=True)
        return np.frombuffer(b"".join([views[buffer][start:end] for buffer, start, end in places]), np.uint8)

    def rows(self, numbers: np.ndarray) -> np.ndarray:
        """Copies records of equal length into the rows of an array.

        Args:
            numbers: the numbers of the records, integers of shape (k,).

        Returns:
            The records, uint8 of shape (k, length), in C order.
        """
        length = int(self.lengths[numbers[0]]) if len(numbers) else 0
        if not length:
            return np.empty((len(numbers), 0), np.uint8)
        buffer_of, starts = self._buffer_of[numbers], self._starts[numbers]
        if len(self._buffers) == 1:
            return windows(self._buffers[0], length)[starts].view(np.uint8).reshape(-1, length)
        taken = np.empty(len(numbers), f"V{length}")
        # A batch of a shuffled data set may have a buffer per file, and only a few records of one length in each.
        order = np.argsort(buffer_of, kind="stable")
        for chosen in np.split(order, np.flatnonzero(np.diff(buffer_of[order])) + 1):
            taken[chosen] = windows(self._buffers[buffer_of[chosen[0]]], length)[starts[chosen]]
        return taken.view(np.uint8).reshape(-1, length)


def windows(buffer: np.ndarray, num_bytes: int) -> np.ndarray:
    """Returns all overlapping windows of a buffer, as a view with items of the dtype ``V{num_bytes}``.

    Indexing the view copies whole windows, which is ten times as fast as slicing the buffer in Python.

    Args:
        buffer: uint8 of one dimension, in C order.
        num_bytes: the length of a window in bytes, 1 or more.
    """
    num_runs = buffer.size - num_bytes + 1
    if num_runs < 1:
        return np.empty(0, f"V{num_bytes}")
    return np.ndarray((num_runs,), f"V{num_bytes}", buffer=buffer.data, strides=(1,))
