"""One file of records: where they lie, and its bytes or the way to them."""

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
from lockstep.data.files.descriptors import allow_more_files
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
class Part:
    """Bytes of a file that are read at once.

    Attributes:
        start: the first of them: the data of a record begins there.
        end: one past the last: a record's checksum ends there.
        numbers: the file's records that are wanted of it, integers of shape (k,).
        rows: where they go in the batch, integers of shape (k,).
    """

    start: int
    end: int
    numbers: np.ndarray
    rows: np.ndarray


@final
@dataclass(frozen=True, kw_only=True)
class Fetched:
    """Parts of a file, with the bytes of each."""

    parts: Sequence[Part]
    bodies: Sequence[bytes]


@final
@dataclass(kw_only=True)
class Hold:
    """How many bytes of files elsewhere may still be held in memory.

    Attributes:
        left_bytes: so many.
        lock: of that number.
    """

    left_bytes: int
    lock: threading.Lock

    def take(self, size_bytes: int) -> bool:
        """Takes so many of them, if that many are left."""
        with self.lock:
            fits = size_bytes <= self.left_bytes
            self.left_bytes -= size_bytes if fits else 0
            return fits


@final
class RecordFile:
    """One file: where its records lie, and its bytes or the way to them."""

    def __init__(self, url: str, *, hold: Hold, on_error: OnError = "raise") -> None:
        self.url = url
        self._lock = threading.Lock()
        self._bucket, self._key = _locate(url)
        self._contents: bytes | mmap.mmap | None = self._map()
        size_bytes = self._bucket.size_bytes(self._key) if self._contents is None else len(self._contents)
        if self._contents is None and hold.take(size_bytes):
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
            self._take_in_lost_records()
        self._is_checked = np.zeros(len(self.offsets), bool)

    @property
    def num_records(self) -> int:
        """How many records there are, those that are lost among them."""
        return len(self.offsets)

    def _fail_of_other_kind(self, size_bytes: int) -> None:
        """Raises the error of a file that is none of TFRecord's, but one of those that others read."""
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

    def _take_in_lost_records(self) -> None:
        """Numbers the records that the name states and that are gone as if they were there."""
        if self._num_stated is None:
            logger.warning("its name does not tell how many records are lost with what is damaged: %s", self._lost)
            return
        if self._num_stated < self._num_whole:  # it has more than it states: that is another file
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
        if isinstance(self._contents, mmap.mmap):  # which is a file, too
            self._contents.seek(0)
            yield self._contents
            return
        with self._bucket.open(self._key) if self._contents is None else io.BytesIO(self._contents) as file:
            yield file

    def plan(self, numbers: np.ndarray) -> list[Part] | None:
        """Says what has to be read for some records; None where the file is in memory.

        Records that lie near each other are read at once: in order, a batch is a few large reads.

        Args:
            numbers: which records, integers of shape (k,).
        """
        self._check_not_lost(numbers)
        if self._contents is not None or not self._read_by_range:
            return None
        rows = np.argsort(numbers, kind="stable")
        starts = self.offsets[numbers[rows]]
        ends = starts + self.lengths[numbers[rows]] + FOOTER_BYTES
        parts: list[Part] = []
        first = 0
        for row in range(1, len(rows) + 1):
            if row < len(rows):
                is_near = starts[row] - ends[row - 1] <= _MAX_GAP_BYTES
                if is_near and ends[row] - starts[first] <= _MAX_RANGE_BYTES:
                    continue
            chosen = rows[first:row]
            part = Part(start=int(starts[first]), end=int(ends[row - 1]), numbers=numbers[chosen], rows=chosen)
            parts.append(part)
            first = row
        return parts

    def fetch(self, part: Part) -> bytes:
        """Reads a part of the file, and checks the records that are wanted of it.

        Raises:
            MissingInputError: the file is no longer there.
            CorruptDataError: it has become shorter, or a record is damaged.
            StorageError: it could not be read.
        """
        first = int(part.numbers[0])
        try:
            body = self._bucket.read(self._key, start_byte=part.start, end_byte=part.end)
        except MissingInputError:
            raise MissingInputError(
                f"{self.url}: record {first} at byte {part.start - HEADER_BYTES}: the file is no longer there",
                action="put it back, or open the files again",
            ) from None
        self._check_whole(part, found_bytes=len(body))
        offsets = self.places(part)
        damaged = find_damaged(body, offsets=offsets, lengths=self.lengths[part.numbers])
        if damaged is not None:
            number, start = int(part.numbers[damaged]), int(offsets[damaged])
            self._check(number, body[start : start + int(self.lengths[number]) + FOOTER_BYTES])
        return body

    def places(self, part: Part) -> np.ndarray:
        """Returns where the records that are wanted of a part begin in it, int64 of shape (k,)."""
        return self.offsets[part.numbers] - part.start

    def locate(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns a buffer with the data of some records, all checked, and where each begins in it.

        Args:
            numbers: which records, integers of shape (k,), of a file that is in memory.

        Raises:
            CorruptDataError: one is damaged, or the file has become shorter.
        """
        contents = self._contents
        if contents is None:
            contents = self._reopen()
        self._check_there(contents, numbers)
        # Checked once: a file is replaced, not changed, and what is mapped stays what it was.
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

    def _check_whole(self, part: Part, *, found_bytes: int) -> None:
        if found_bytes == part.end - part.start:
            return
        ends = self.offsets[part.numbers] + self.lengths[part.numbers] + FOOTER_BYTES
        self._fail_cut_off(int(part.numbers[np.argmax(ends > part.start + found_bytes)]), part.start + found_bytes)

    def _check_there(self, contents: bytes | mmap.mmap, numbers: np.ndarray) -> None:
        # To touch a page that a mapped file no longer has ends the process: whoever cuts a file off has to be noticed.
        # One that is in memory may have been read again, where it was pickled.
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
        """Maps a file of this machine; None for one elsewhere. An empty file cannot be mapped and has no records."""
        try:
            return self._mapped()
        except (OSError, StorageError) as error:
            cause = error.__cause__ if isinstance(error, StorageError) else error
            if not isinstance(cause, OSError) or cause.errno != errno.EMFILE:
                raise
        allow_more_files(_SPARE_FILES)
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
