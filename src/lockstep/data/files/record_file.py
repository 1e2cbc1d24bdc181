"""One TFRecord file: the positions of its records, and access to their data in memory or by byte ranges."""

from __future__ import annotations

import errno
import io
import logging
import mmap
import os
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, NoReturn, final

import numpy as np

from lockstep.data.files.compression import HEAD_BYTES
from lockstep.data.files.descriptors import raise_open_file_limit
from lockstep.data.files.framing import FOOTER_BYTES, HEADER_BYTES, checked_data, find_damaged, scan_lengths
from lockstep.data.files.kinds import kind_of
from lockstep.data.files.record_index import RecordIndex, find_index
from lockstep.data.files.shards import ShardName
from lockstep.data.files.skipping import OnError
from lockstep.errors import CorruptDataError, MissingInputError, StorageError
from lockstep.storage import AbstractBucket, open_bucket, split_url

logger = logging.getLogger(__name__)

_MAX_GAP_BYTES: Final = 1 << 16
_MAX_RANGE_BYTES: Final = 1 << 22
_SPARE_FILES: Final = 256
_KINDS: Final = {"GZIP": "compressed by GZIP", "ZLIB": "compressed by ZLIB", "ArrayRecord": "an ArrayRecord file"}
_COPY_AGAIN: Final = "copy the file again from its source, or pack it again"


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class ByteRange:
    """A byte range of a file that is read in one request.

    Attributes:
        start: the offset of its first byte, where the data of a record begins.
        end: one past its last byte, where the checksum of a record ends.
        numbers: the numbers of the requested records in this range, integers of shape (k,).
        rows: the positions of these records among the requested ones, integers of shape (k,).
    """

    start: int
    end: int
    numbers: np.ndarray
    rows: np.ndarray


@final
@dataclass(frozen=True, kw_only=True)
class FetchedRanges:
    """Byte ranges of a file, with the bytes of each."""

    ranges: Sequence[ByteRange]
    bodies: Sequence[bytes]


@final
@dataclass(kw_only=True)
class MemoryBudget:
    """The memory that is left for holding remote files, shared by all files of a source.

    Attributes:
        left_bytes: the number of bytes that are left.
        lock: the lock that protects ``left_bytes``.
    """

    left_bytes: int
    lock: threading.Lock

    def reserve(self, size_bytes: int) -> bool:
        """Reserves a number of bytes; False, with nothing reserved, if not enough are left."""
        with self.lock:
            fits = size_bytes <= self.left_bytes
            self.left_bytes -= size_bytes if fits else 0
            return fits


@final
class RecordFile:
    """One TFRecord file: the positions of its records, and access to their data.

    A local file is mapped into memory. A remote file is held in memory, or read by byte ranges if it is too large.

    Args:
        url: the file's URL.
        budget: the memory that is left for holding remote files.
        on_error: the policy for unreadable records: "raise", or `Skip`.

    Raises:
        MissingInputError: the file does not exist.
        CorruptDataError: the file is cut off or damaged and ``on_error`` is "raise", or it is not a plain TFRecord
            file.
        StorageError: the file could not be read.
    """

    def __init__(self, url: str, *, budget: MemoryBudget, on_error: OnError = "raise") -> None:
        self.url = url
        self._lock = threading.Lock()
        self._bucket, self._key = _locate(url)
        self._contents: bytes | mmap.mmap | None = self._map()
        size_bytes = self._bucket.size_bytes(self._key) if self._contents is None else len(self._contents)
        if self._contents is None and budget.reserve(size_bytes):
            self._contents = self._bucket.read(self._key)
            size_bytes = len(self._contents)
        self._read_by_range = self._contents is None
        stated = ShardName.parse(url)
        self._num_stated = None if stated is None else stated.num_records
        self._lost: str | None = None
        try:
            index = find_index(
                self._bucket, self._key, size_bytes=size_bytes, read=self._read, scan=lambda: self._scan(size_bytes)
            )
            self._check_count(len(index.lengths))
        except CorruptDataError as error:
            self._fail_of_other_kind(size_bytes)
            if on_error == "raise":
                raise
            self._lost = str(error)
            index = RecordIndex(lengths=self._scan_what_is_whole(size_bytes))
        self.offsets, self.lengths = index.offsets, index.lengths
        self._num_whole = len(index.lengths)
        if self._lost is not None:
            self._number_lost_records()
        self._is_checked = np.zeros(len(self.offsets), bool)

    @property
    def num_records(self) -> int:
        """The number of records, including those that are lost."""
        return len(self.offsets)

    def _fail_of_other_kind(self, size_bytes: int) -> None:
        """Raises the error for a file of another kind, which another class reads; returns for a TFRecord file."""
        kind = kind_of(self._read(0, min(size_bytes, HEAD_BYTES)))
        if kind == "TFRecord":
            return
        reader = "ArrayRecordSource" if kind == "ArrayRecord" else "CompressedRecords"
        raise CorruptDataError(
            f"{self.url}: it is not a plain TFRecord file but {_KINDS[kind]}",
            action=f"read it with lockstep.data.{reader}, or all files of its kind with lockstep.data.records",
        )

    def _check_count(self, num_found: int) -> None:
        if self._num_stated not in (None, num_found):
            raise CorruptDataError(
                f"{self.url}: {num_found} records found, {self._num_stated} stated in the file's name",
                action=_COPY_AGAIN,
            )

    def _number_lost_records(self) -> None:
        """Gives numbers to the lost records too: those that the file's name counts and the file no longer has."""
        if self._num_stated is None:
            logger.warning(
                "the number of lost records is unknown, because the file name does not state it: %s", self._lost
            )
            return
        if self._num_stated < self._num_whole:  # more records than the name states: the file is not this shard
            raise CorruptDataError(self._lost or "")
        num_lost = self._num_stated - self._num_whole
        self.offsets, self.lengths = (np.pad(values, (0, num_lost)) for values in (self.offsets, self.lengths))

    def _read(self, start: int, end: int) -> bytes:
        if self._contents is None:
            return self._bucket.read(self._key, start_byte=start, end_byte=end)
        return self._contents[start:end]

    def _scan(self, size_bytes: int) -> np.ndarray:
        with self._opened() as file:
            return np.fromiter(scan_lengths(file, size_bytes=size_bytes, url=self.url), np.int64)

    def _scan_what_is_whole(self, size_bytes: int) -> np.ndarray:
        lengths: list[int] = []
        with self._opened() as file, suppress(CorruptDataError):
            for length in scan_lengths(file, size_bytes=size_bytes, url=self.url):
                lengths.append(length)
        return np.array(lengths, np.int64)

    @contextmanager
    def _opened(self) -> Generator[BinaryIO | mmap.mmap]:
        if isinstance(self._contents, mmap.mmap):  # a mapping has the methods of a file
            self._contents.seek(0)
            yield self._contents
            return
        with self._bucket.open(self._key) if self._contents is None else io.BytesIO(self._contents) as file:
            yield file

    def plan(self, numbers: np.ndarray) -> list[ByteRange] | None:
        """Returns the byte ranges to read for some records; None if the file is in memory.

        Records that are near each other share a range, so a batch in file order needs only a few large reads.

        Args:
            numbers: the numbers of the records, integers of shape (k,).

        Raises:
            CorruptDataError: one of the records is lost.
        """
        self._check_not_lost(numbers)
        if self._contents is not None or not self._read_by_range:
            return None
        rows = np.argsort(numbers, kind="stable")
        starts = self.offsets[numbers[rows]]
        ends = starts + self.lengths[numbers[rows]] + FOOTER_BYTES
        ranges: list[ByteRange] = []
        first = 0
        for row in range(1, len(rows) + 1):
            if row < len(rows):
                is_near = starts[row] - ends[row - 1] <= _MAX_GAP_BYTES
                if is_near and ends[row] - starts[first] <= _MAX_RANGE_BYTES:
                    continue
            chosen = rows[first:row]
            ranges.append(
                ByteRange(start=int(starts[first]), end=int(ends[row - 1]), numbers=numbers[chosen], rows=chosen)
            )
            first = row
        return ranges

    def fetch(self, byte_range: ByteRange) -> bytes:
        """Reads a byte range of the file, and verifies the checksums of the requested records in it.

        Raises:
            MissingInputError: the file no longer exists.
            CorruptDataError: the file has become shorter, or a record is damaged.
            StorageError: the file could not be read.
        """
        first = int(byte_range.numbers[0])
        try:
            body = self._bucket.read(self._key, start_byte=byte_range.start, end_byte=byte_range.end)
        except MissingInputError:
            raise MissingInputError(
                f"{self.url}: record {first} at byte {byte_range.start - HEADER_BYTES}: the file is no longer there",
                action="put it back, or open the files again",
            ) from None
        self._check_whole(byte_range, found_bytes=len(body))
        offsets = self.offsets_in(byte_range)
        damaged = find_damaged(body, offsets=offsets, lengths=self.lengths[byte_range.numbers])
        if damaged is not None:
            number, start = int(byte_range.numbers[damaged]), int(offsets[damaged])
            self._check(number, body[start : start + int(self.lengths[number]) + FOOTER_BYTES])
        return body

    def offsets_in(self, byte_range: ByteRange) -> np.ndarray:
        """Returns the offsets of the requested records' data within a byte range, int64 of shape (k,)."""
        return self.offsets[byte_range.numbers] - byte_range.start

    def locate(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Verifies records of a file that is in memory, and returns the file's bytes and the records' offsets.

        Args:
            numbers: the numbers of the records, integers of shape (k,).

        Returns:
            The file's bytes, uint8 of one dimension, and the offsets of the records' data in them, int64 of shape (k,).

        Raises:
            CorruptDataError: a record is damaged, or the file has become shorter.
        """
        contents = self._contents
        if contents is None:
            contents = self._reopen()
        self._check_there(contents, numbers)
        # Each record is verified once: files are replaced, not changed in place, so mapped bytes do not change.
        unchecked = numbers[~self._is_checked[numbers]]
        if unchecked.size:
            damaged = find_damaged(contents, offsets=self.offsets[unchecked], lengths=self.lengths[unchecked])
            if damaged is not None:
                number = int(unchecked[damaged])
                start = int(self.offsets[number])
                self._check(number, contents[start : start + int(self.lengths[number]) + FOOTER_BYTES])
            self._is_checked[unchecked] = True
        return np.frombuffer(contents, np.uint8), self.offsets[numbers]

    def _check_not_lost(self, numbers: np.ndarray) -> None:
        if self._lost is not None and (numbers >= self._num_whole).any():
            raise CorruptDataError(self._lost)

    def _check_whole(self, byte_range: ByteRange, *, found_bytes: int) -> None:
        if found_bytes == byte_range.end - byte_range.start:
            return
        ends = self.offsets[byte_range.numbers] + self.lengths[byte_range.numbers] + FOOTER_BYTES
        self._fail_cut_off(
            int(byte_range.numbers[np.argmax(ends > byte_range.start + found_bytes)]), byte_range.start + found_bytes
        )

    def _check_there(self, contents: bytes | mmap.mmap, numbers: np.ndarray) -> None:
        # Accessing a page beyond the end of a mapped file kills the process (SIGBUS), so a truncated file has to be
        # detected first. A file that is held in memory may have changed too: after pickling it is read again.
        size_bytes = contents.size() if isinstance(contents, mmap.mmap) else len(contents)
        ends = self.offsets[numbers] + self.lengths[numbers] + FOOTER_BYTES
        lost = np.flatnonzero(ends > size_bytes)
        if lost.size:
            self._fail_cut_off(int(numbers[lost[0]]), size_bytes)

    def _fail_cut_off(self, number: int, size_bytes: int) -> NoReturn:
        raise CorruptDataError(
            f"{self.url}: record {number} at byte {self.offsets[number] - HEADER_BYTES}: the file was cut off while it "
            f"was read: the record ends at byte {self.offsets[number] + self.lengths[number] + FOOTER_BYTES}, "
            f"{size_bytes} bytes are there",
            action=_COPY_AGAIN,
        )

    def _check(self, number: int, body: bytes) -> bytes:
        offset, length = int(self.offsets[number]), int(self.lengths[number])
        return checked_data(body, length=length, url=self.url, number=number, offset=offset - HEADER_BYTES)

    def _map(self) -> bytes | mmap.mmap | None:
        """Maps a local file into memory; None for a remote one. An empty file, which cannot be mapped, gives b""."""
        try:
            return self._mapped()
        except (OSError, StorageError) as error:
            cause = error.__cause__ if isinstance(error, StorageError) else error
            if not isinstance(cause, OSError) or cause.errno != errno.EMFILE:
                raise
        raise_open_file_limit(_SPARE_FILES)
        return self._mapped()

    def _mapped(self) -> bytes | mmap.mmap | None:
        with self._bucket.open(self._key) as file:
            try:
                descriptor = file.fileno()
            except OSError:
                return None
            if not os.fstat(descriptor).st_size:
                return b""
            return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)

    def _reopen(self) -> bytes | mmap.mmap:
        with self._lock:
            if self._contents is None:
                contents = self._map()
                self._contents = self._bucket.read(self._key) if contents is None else contents
            return self._contents

    def __getstate__(self) -> dict[str, Any]:
        kept = ("url", "offsets", "lengths", "_read_by_range", "_num_stated", "_num_whole", "_lost")
        return {name: value for name, value in self.__dict__.items() if name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()
        self._bucket, self._key = _locate(self.url)
        self._contents = None
        self._is_checked = np.zeros(len(self.offsets), bool)


def _locate(url: str) -> tuple[AbstractBucket, str]:
    bucket_url, key = split_url(url)
    return open_bucket(bucket_url), key
