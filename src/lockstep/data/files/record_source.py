"""The records of packed files, by number."""

from __future__ import annotations

import io
import mmap
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, SupportsIndex, final

import numpy as np

from lockstep.data.files.framing import FOOTER_BYTES, HEADER_BYTES, checked_data, find_damaged, scan_lengths
from lockstep.data.files.record_batch import RecordBatch
from lockstep.data.files.record_index import find_index
from lockstep.data.files.shards import ShardName, find_shards
from lockstep.errors import CorruptDataError, InvalidInputError
from lockstep.storage import AbstractBucket, open_bucket, split_url

if TYPE_CHECKING:
    import grain

DEFAULT_HELD_BYTES: Final = 1 << 30
_NUM_SCANNERS: Final = 8


@final
class RecordSource:
    """The records of one or more TFRecord files as a sequence of bytes: a Grain ``RandomAccessDataSource``.

    The places of the records come from each file's index (`lockstep.data.files.record_index`), or from a scan of the
    file where there is none yet. Each record's checksum is checked when it is first read. Files of this machine are
    mapped into memory; files of a bucket elsewhere are held in memory up to ``held_bytes``, and beyond that each record
    is read from the bucket by its range. It may be pickled, and read from any thread.

    Args:
        urls: a pattern (see `lockstep.storage.glob_urls`), of which each shard has to be there; or the URLs of
            files. Records are numbered through the files in sorted order (of a pattern) or in the order given.
        held_bytes: how much of files elsewhere may be held in memory.

    Raises:
        MissingInputError: nothing was found, or a shard is missing.
        CorruptDataError: a file is cut off, or has another number of records than its name says.
        StorageError: a file could not be read.
    """

    def __init__(self, urls: str | os.PathLike[str] | Sequence[str], *, held_bytes: int = DEFAULT_HELD_BYTES) -> None:
        self._name = _name(urls)
        self._files = _scan(find_shards(urls), held_bytes=held_bytes)
        self._starts = _starts(self._files)

    @property
    def urls(self) -> tuple[str, ...]:
        """The files, in the order of their records."""
        return tuple(file.url for file in self._files)

    @property
    def num_files(self) -> int:
        """How many files there are."""
        return len(self._files)

    def open_files(self, files: Sequence[int]) -> RecordSource:
        """Returns the records of some of the files, as `RecordFiles.open_files` does; they are open already.

        Args:
            files: their numbers, from 0.
        """
        part = RecordSource.__new__(RecordSource)
        part._name = f"{len(files)} of the files of {self._name}"
        part._files = [self._files[file] for file in files]
        part._starts = _starts(part._files)
        return part

    @property
    def num_records_by_url(self) -> dict[str, int]:
        """How many records each file has."""
        return {file.url: len(file.offsets) for file in self._files}

    def __len__(self) -> int:
        """How many records there are."""
        return int(self._starts[-1])

    def __getitem__(self, index: SupportsIndex) -> bytes:
        """Reads one record by its number; negative numbers count from the end.

        Raises:
            IndexError: there is no such record.
            CorruptDataError: its data fails its check.
        """
        return self.__getitems__([index.__index__()])[0]

    def __getitems__(self, indices: Sequence[int] | np.ndarray) -> RecordBatch:
        """Reads several records by their numbers, faster than one by one; the name is PyTorch's for the same.

        Records in memory are not copied: `lockstep.data.parse_batch` takes their values from where they are.

        Raises:
            IndexError: there is no such record.
            CorruptDataError: the data of one fails its check.
        """
        numbers = np.asarray(indices, np.int64)
        if numbers.size and not (-len(self) <= numbers.min() and numbers.max() < len(self)):
            raise IndexError(f"{self} has no record {numbers[(numbers < -len(self)) | (numbers >= len(self))][0]}")
        numbers = np.where(numbers < 0, numbers + len(self), numbers)
        files = np.searchsorted(self._starts, numbers, side="right") - 1
        within = numbers - self._starts[files]
        used, buffer_of = np.unique(files, return_inverse=True)
        buffers: list[np.ndarray] = []
        starts, lengths = np.empty((2, len(numbers)), np.int64)
        for index, file in enumerate(used.tolist()):
            chosen = buffer_of == index
            buffer, starts[chosen] = self._files[file].locate(within[chosen])
            lengths[chosen] = self._files[file].lengths[within[chosen]]
            buffers.append(buffer)
        return RecordBatch(buffers, buffer_of=buffer_of, starts=starts, lengths=lengths)

    def __repr__(self) -> str:
        """Names the pattern or the number of files; Grain shows it."""
        return f"RecordSource({self._name})"


@final
class RecordFiles:
    """TFRecord files that are opened when it is known which of them this process reads.

    `Batches` takes it where the workers divide the files among them (`lockstep.strategies.AutoShardPolicy.FILE`): none
    opens another one's.

    Args:
        urls: as `RecordSource` takes them.
        held_bytes: as `RecordSource` takes it.

    Raises:
        MissingInputError: nothing was found, or a shard is missing.
        CorruptDataError: a shard is there twice, or under two numbers of shards.
    """

    def __init__(self, urls: str | os.PathLike[str] | Sequence[str], *, held_bytes: int = DEFAULT_HELD_BYTES) -> None:
        self._name = _name(urls)
        self._urls = tuple(find_shards(urls))
        self._held_bytes = held_bytes

    @property
    def urls(self) -> tuple[str, ...]:
        """The files, in the order of their records."""
        return self._urls

    @property
    def num_files(self) -> int:
        """How many files there are."""
        return len(self._urls)

    def open_files(self, files: Sequence[int]) -> RecordSource:
        """Opens some of the files; see `RecordSource` for what can go wrong.

        Args:
            files: their numbers, from 0.
        """
        return RecordSource([self._urls[file] for file in files], held_bytes=self._held_bytes)

    def __repr__(self) -> str:
        """Names the pattern or the number of files."""
        return f"RecordFiles({self._name})"


def records(urls: str | os.PathLike[str] | Sequence[str]) -> grain.MapDataset:
    """Returns the records of packed files as a Grain dataset of bytes, to which Grain's transformations apply.

    Args:
        urls: as `RecordSource` takes them.
    """
    import grain  # it imports JAX; looking at files needs neither

    return grain.MapDataset.source(RecordSource(urls))


@final
class _File:
    """One file: where its records lie, and its bytes or the way to them."""

    def __init__(self, url: str, *, hold: _Hold) -> None:
        self.url = url
        self._lock = threading.Lock()
        self._bucket, self._key = _locate(url)
        self._contents: bytes | mmap.mmap | None = self._map()
        size_bytes = self._bucket.size_bytes(self._key) if self._contents is None else len(self._contents)
        if self._contents is None and hold.take(size_bytes):
            self._contents = self._bucket.read(self._key)
            size_bytes = len(self._contents)
        self._read_by_range = self._contents is None
        index = find_index(
            self._bucket, self._key, size_bytes=size_bytes, read=self._read, scan=lambda: self._scan(size_bytes)
        )
        self.offsets, self.lengths = index.offsets, index.lengths
        self._is_checked = np.zeros(len(self.offsets), bool)
        stated = ShardName.parse(url)
        if stated is not None and stated.num_records not in (None, len(self.offsets)):
            raise CorruptDataError(
                f"{url}: {len(self.offsets)} records found, {stated.num_records} stated in the file's name",
                action="copy the file again from its source, or pack it again",
            )

    def _read(self, start: int, end: int) -> bytes:
        if self._contents is None:
            return self._bucket.read(self._key, start_byte=start, end_byte=end)
        return self._contents[start:end]

    def _scan(self, size_bytes: int) -> np.ndarray:
        if isinstance(self._contents, mmap.mmap):  # which is a file, too
            self._contents.seek(0)
            return scan_lengths(self._contents, size_bytes=size_bytes, url=self.url)
        with self._bucket.open(self._key) if self._contents is None else io.BytesIO(self._contents) as file:
            return scan_lengths(file, size_bytes=size_bytes, url=self.url)

    def locate(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns a buffer with the data of some records, all checked, and where each begins in it.

        Args:
            numbers: which records, integers of shape (k,).
        """
        contents = self._contents
        if contents is None and self._read_by_range:
            bodies = [self._fetch(number) for number in numbers.tolist()]
            lengths = self.lengths[numbers]
            return np.frombuffer(b"".join(bodies), np.uint8), np.cumsum(lengths) - lengths
        if contents is None:
            contents = self._reopen()
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

    def _fetch(self, number: int) -> bytes:
        offset = int(self.offsets[number])
        end = offset + int(self.lengths[number]) + FOOTER_BYTES
        return self._check(number, self._read(offset, end))

    def _check(self, number: int, body: bytes) -> bytes:
        offset, length = int(self.offsets[number]), int(self.lengths[number])
        return checked_data(body, length=length, url=self.url, number=number, offset=offset - HEADER_BYTES)

    def _map(self) -> bytes | mmap.mmap | None:
        """Maps a file of this machine; None for one elsewhere. An empty file cannot be mapped and has no records."""
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
        kept = ("url", "offsets", "lengths", "_read_by_range")
        return {name: value for name, value in self.__dict__.items() if name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()
        self._bucket, self._key = _locate(self.url)
        self._contents = None
        self._is_checked = np.zeros(len(self.offsets), bool)


@final
@dataclass(kw_only=True)
class _Hold:
    """How many bytes of files elsewhere may still be held in memory."""

    left_bytes: int
    lock: threading.Lock

    def take(self, size_bytes: int) -> bool:
        with self.lock:
            fits = size_bytes <= self.left_bytes
            self.left_bytes -= size_bytes if fits else 0
            return fits


def _name(urls: str | os.PathLike[str] | Sequence[str]) -> str:
    return os.fspath(urls) if isinstance(urls, str | os.PathLike) else f"{len(urls)} files"


def _starts(files: Sequence[_File]) -> np.ndarray:
    return np.cumsum([0, *(len(file.offsets) for file in files)])


def _locate(url: str) -> tuple[AbstractBucket, str]:
    bucket_url, key = split_url(url)
    return open_bucket(bucket_url), key


def _scan(urls: Sequence[str], *, held_bytes: int) -> list[_File]:
    if held_bytes < 0:
        raise InvalidInputError("held_bytes", received=held_bytes, allowed="0 or more")
    hold = _Hold(left_bytes=held_bytes, lock=threading.Lock())
    # Several at once: a bucket elsewhere answers slowly but many at a time.
    with ThreadPoolExecutor(min(_NUM_SCANNERS, len(urls)), "lockstep-scan") as executor:
        return list(executor.map(lambda url: _File(url, hold=hold), urls))
