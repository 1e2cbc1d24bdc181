"""Reads the records of TFRecord files by number."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, final

import numpy as np

from lockstep.data.files.descriptors import raise_open_file_limit
from lockstep.data.files.numbered import AbstractRecordSource, name_of
from lockstep.data.files.record_batch import RecordBatch
from lockstep.data.files.record_file import FetchedRanges, MemoryBudget, RecordFile
from lockstep.data.files.shards import find_shards
from lockstep.data.files.skipping import OnError
from lockstep.errors import InvalidInputError, StorageError
from lockstep.storage import open_bucket, split_url
from lockstep.storage.local import LocalBucket

DEFAULT_HELD_BYTES: Final = 1 << 30
DEFAULT_NUM_CONNECTIONS: Final = 128
_NUM_SCANNERS: Final = 8
_SPARE_FILES: Final = 256


@final
class RecordSource(AbstractRecordSource[RecordFile]):
    """The records of one or more TFRecord files as a sequence of bytes: a Grain ``RandomAccessDataSource``.

    The positions of the records come from each file's index (`lockstep.data.files.record_index`), or from a scan of the
    file if it has no index yet. The checksum of a record's data is verified when the record is first read. Local files
    are mapped into memory. Remote files are held in memory up to ``held_bytes`` in total. Records of further remote
    files are read from the bucket by byte range: many ranges in parallel, with nearby records in one range. A source
    may be pickled, and read from any thread.

    Args:
        urls: a pattern (see `lockstep.storage.glob_urls`) or the name of a data set's split (BUCKET/NAME-train), of
            which each shard must exist; or the URLs of files. The records are numbered across the files: in sorted
            order of the files for a pattern or name, in the given order for URLs.
        held_bytes: the most bytes of remote files to hold in memory.
        num_connections: the number of byte ranges of remote files to read in parallel. A bucket that responds in 50 ms
            returns 128 records of 100 kB each in that time: 256 MB per second.
        on_error: the policy for unreadable records: "raise", or `Skip`. `Batches` applies it. With `Skip`, an
            unreadable record that is requested by number is None, which Grain's datasets omit.

    Raises:
        MissingInputError: no file was found, or a shard is missing.
        CorruptDataError: a file is cut off, or its number of records differs from the one in its name, and ``on_error``
            is "raise"; or a shard exists twice, or with two different numbers of shards.
        StorageError: a file could not be read.
    """

    def __init__(
        self,
        urls: str | os.PathLike[str] | Sequence[str],
        *,
        held_bytes: int = DEFAULT_HELD_BYTES,
        num_connections: int = DEFAULT_NUM_CONNECTIONS,
        on_error: OnError = "raise",
    ) -> None:
        if num_connections < 1:
            raise InvalidInputError("num_connections", received=num_connections, allowed="1 or more")
        files = _scan(find_shards(urls), held_bytes=held_bytes, on_error=on_error)
        super().__init__(files, name=name_of(urls), on_error=on_error)
        self._connections = _Connections(num_connections)

    def _read(
        self, wanted: Sequence[tuple[RecordFile, np.ndarray]], rows: Sequence[np.ndarray], *, num_records: int
    ) -> RecordBatch:
        """Reads records as the base class describes. Records in memory are not copied."""
        buffers: list[np.ndarray] = []
        buffer_of, starts, lengths = np.empty((3, num_records), np.int64)
        for (file, records), chosen, fetched in zip(wanted, rows, self._connections.fetch(wanted), strict=True):
            lengths[chosen] = file.lengths[records]
            if fetched is None:
                buffer, starts[chosen] = file.locate(records)
                buffer_of[chosen] = len(buffers)
                buffers.append(buffer)
                continue
            for byte_range, body in zip(fetched.ranges, fetched.bodies, strict=True):
                starts[chosen[byte_range.rows]] = file.offsets_in(byte_range)
                buffer_of[chosen[byte_range.rows]] = len(buffers)
                buffers.append(np.frombuffer(body, np.uint8))
        return RecordBatch(buffers, buffer_of=buffer_of, starts=starts, lengths=lengths)


@final
class RecordFiles:
    """TFRecord files that are opened only when it is known which of them this process reads.

    Give it to `Batches` if the workers divide the files among themselves (`lockstep.strategies.AutoShardPolicy.FILE`):
    each worker then opens only its own files.

    Args:
        urls: the files, as for `RecordSource`.
        held_bytes: the most bytes of remote files to hold in memory.
        num_connections: the number of byte ranges of remote files to read in parallel.
        on_error: the policy for unreadable records, as for `RecordSource`.

    Raises:
        MissingInputError: no file was found, or a shard is missing.
        CorruptDataError: a shard exists twice, or with two different numbers of shards.
    """

    def __init__(
        self,
        urls: str | os.PathLike[str] | Sequence[str],
        *,
        held_bytes: int = DEFAULT_HELD_BYTES,
        num_connections: int = DEFAULT_NUM_CONNECTIONS,
        on_error: OnError = "raise",
    ) -> None:
        self._name = name_of(urls)
        self._urls = tuple(find_shards(urls))
        self._held_bytes = held_bytes
        self._num_connections = num_connections
        self._on_error: OnError = on_error

    @property
    def urls(self) -> tuple[str, ...]:
        """The URLs of the files, in the order of their records."""
        return self._urls

    @property
    def num_files(self) -> int:
        """The number of files."""
        return len(self._urls)

    @property
    def on_error(self) -> OnError:
        """The policy for unreadable records."""
        return self._on_error

    def open_files(self, files: Sequence[int]) -> RecordSource:
        """Opens some of the files. Raises the errors of `RecordSource`.

        Args:
            files: the numbers of the files, from 0.
        """
        return RecordSource(
            [self._urls[file] for file in files],
            held_bytes=self._held_bytes,
            num_connections=self._num_connections,
            on_error=self._on_error,
        )

    def __repr__(self) -> str:
        """Returns a description with the pattern or the number of files."""
        return f"RecordFiles({self._name})"


@final
class _Connections:
    """The threads that read byte ranges of remote files. They start when the first range is requested.

    Args:
        num_threads: the maximum number of threads.
    """

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        self._process = os.getpid()

    def fetch(self, parts: Sequence[tuple[RecordFile, np.ndarray]]) -> list[FetchedRanges | None]:
        """Reads records of several files in parallel.

        Args:
            parts: the files, each with the numbers of the records to read, integers of shape (k,).

        Returns:
            The byte ranges that were read of each file; None for a file that is in memory.
        """
        plans = [file.plan(numbers) for file, numbers in parts]
        if not any(plans):
            return [None] * len(parts)
        with self._lock:
            if self._executor is None or self._process != os.getpid():  # threads do not survive a fork
                self._process = os.getpid()
                self._executor = ThreadPoolExecutor(self._num_threads, "lockstep-fetch")
            executor = self._executor
        under_way = [
            None if plan is None else [executor.submit(file.fetch, byte_range) for byte_range in plan]
            for (file, _), plan in zip(parts, plans, strict=True)
        ]
        try:
            return [
                None
                if plan is None or futures is None
                else FetchedRanges(ranges=plan, bodies=[f.result() for f in futures])
                for plan, futures in zip(plans, under_way, strict=True)
            ]
        finally:  # after an error, the other ranges are not needed
            for future in (future for futures in under_way if futures for future in futures):
                future.cancel()

    def __getstate__(self) -> dict[str, Any]:
        return {"_num_threads": self._num_threads}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_num_threads"])


def _allow_open_files(urls: Sequence[str]) -> None:
    counts = Counter(split_url(url)[0] for url in urls)
    num_local = sum(count for url, count in counts.items() if isinstance(open_bucket(url), LocalBucket))
    with suppress(StorageError):  # spare files for the rest of the program, if the limit allows them
        raise_open_file_limit(num_local + _SPARE_FILES)
    raise_open_file_limit(num_local)


def _scan(urls: Sequence[str], *, held_bytes: int, on_error: OnError) -> list[RecordFile]:
    if held_bytes < 0:
        raise InvalidInputError("held_bytes", received=held_bytes, allowed="0 or more")
    budget = MemoryBudget(left_bytes=held_bytes, lock=threading.Lock())
    _allow_open_files(urls)
    # Scanned in parallel: a remote bucket responds slowly, but to many requests at once.
    with ThreadPoolExecutor(min(_NUM_SCANNERS, len(urls)), "lockstep-scan") as executor:
        return list(executor.map(lambda url: RecordFile(url, budget=budget, on_error=on_error), urls))
