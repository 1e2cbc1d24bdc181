"""The records of packed files, by number."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, final

import numpy as np

from lockstep.data.files.descriptors import allow_more_files
from lockstep.data.files.numbered import AbstractRecordSource, name_of
from lockstep.data.files.record_batch import RecordBatch
from lockstep.data.files.record_file import Fetched, Hold, RecordFile
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

    The places of the records come from each file's index (`lockstep.data.files.record_index`), or from a scan of the
    file where there is none yet. Each record's checksum is checked when it is first read. Files of this machine are
    mapped into memory; files of a bucket elsewhere are held in memory up to ``held_bytes``, and beyond that records are
    read from the bucket by their ranges: many at a time, and those that lie near each other at once. It may be pickled,
    and read from any thread.

    Args:
        urls: a pattern (see `lockstep.storage.glob_urls`) or the name of a data set's split (BUCKET/NAME-train), of
            which each shard has to be there; or the URLs of files. Records are numbered through the files in sorted
            order, or of URLs in the order given.
        held_bytes: how much of files elsewhere may be held in memory.
        num_connections: how many ranges of files elsewhere are read at a time. A bucket that answers in 50 ms gives 128
            records of 100 kB each in that time: 256 MB a second.
        on_error: what is done about records that cannot be read: "raise", or `Skip`. `Batches` follows it; a record
            that is asked for by its number is None then, which Grain's data sets leave out.

    Raises:
        MissingInputError: nothing was found, or a shard is missing.
        CorruptDataError: a file is cut off, or has another number of records than its name says, and ``on_error`` is
            "raise".
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
        """See the base class. Records in memory are not copied."""
        buffers: list[np.ndarray] = []
        buffer_of, starts, lengths = np.empty((3, num_records), np.int64)
        for (file, records), chosen, fetched in zip(wanted, rows, self._connections.fetch(wanted), strict=True):
            lengths[chosen] = file.lengths[records]
            if fetched is None:
                buffer, starts[chosen] = file.locate(records)
                buffer_of[chosen] = len(buffers)
                buffers.append(buffer)
                continue
            for part, body in zip(fetched.parts, fetched.bodies, strict=True):
                starts[chosen[part.rows]] = file.places(part)
                buffer_of[chosen[part.rows]] = len(buffers)
                buffers.append(np.frombuffer(body, np.uint8))
        return RecordBatch(buffers, buffer_of=buffer_of, starts=starts, lengths=lengths)


@final
class RecordFiles:
    """TFRecord files that are opened when it is known which of them this process reads.

    `Batches` takes it where the workers divide the files among them (`lockstep.strategies.AutoShardPolicy.FILE`): none
    opens another one's.

    Args:
        urls: as `RecordSource` takes them.
        held_bytes: as `RecordSource` takes it.
        num_connections: as `RecordSource` takes it.
        on_error: as `RecordSource` takes it.

    Raises:
        MissingInputError: nothing was found, or a shard is missing.
        CorruptDataError: a shard is there twice, or under two numbers of shards.
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
        """The files, in the order of their records."""
        return self._urls

    @property
    def num_files(self) -> int:
        """How many files there are."""
        return len(self._urls)

    @property
    def on_error(self) -> OnError:
        """What is done about records that cannot be read."""
        return self._on_error

    def open_files(self, files: Sequence[int]) -> RecordSource:
        """Opens some of the files; see `RecordSource` for what can go wrong.

        Args:
            files: their numbers, from 0.
        """
        return RecordSource(
            [self._urls[file] for file in files],
            held_bytes=self._held_bytes,
            num_connections=self._num_connections,
            on_error=self._on_error,
        )

    def __repr__(self) -> str:
        """Names the pattern or the number of files."""
        return f"RecordFiles({self._name})"


@final
class _Connections:
    """The threads that read ranges of files elsewhere; they start with the first range that is asked for.

    Args:
        num_threads: how many there are at most.
    """

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        self._process = os.getpid()

    def fetch(self, parts: Sequence[tuple[RecordFile, np.ndarray]]) -> list[Fetched | None]:
        """Reads records of several files, all at once; None for files that are in memory.

        Args:
            parts: files, each with numbers of its records, integers of shape (k,).
        """
        plans = [file.plan(numbers) for file, numbers in parts]
        if not any(plans):
            return [None] * len(parts)
        with self._lock:
            if self._executor is None or self._process != os.getpid():  # threads do not come along with a fork
                self._process = os.getpid()
                self._executor = ThreadPoolExecutor(self._num_threads, "lockstep-fetch")
            executor = self._executor
        under_way = [
            None if plan is None else [executor.submit(file.fetch, part) for part in plan]
            for (file, _), plan in zip(parts, plans, strict=True)
        ]
        try:
            return [
                None if plan is None or futures is None else Fetched(parts=plan, bodies=[f.result() for f in futures])
                for plan, futures in zip(plans, under_way, strict=True)
            ]
        finally:  # after an error nobody wants the rest
            for future in (future for futures in under_way if futures for future in futures):
                future.cancel()

    def __getstate__(self) -> dict[str, Any]:
        return {"_num_threads": self._num_threads}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_num_threads"])


def _allow_open_files(urls: Sequence[str]) -> None:
    counts = Counter(split_url(url)[0] for url in urls)
    num_local = sum(count for url, count in counts.items() if isinstance(open_bucket(url), LocalBucket))
    with suppress(StorageError):  # the rest of the program opens files, too
        allow_more_files(num_local + _SPARE_FILES)
    allow_more_files(num_local)


def _scan(urls: Sequence[str], *, held_bytes: int, on_error: OnError) -> list[RecordFile]:
    if held_bytes < 0:
        raise InvalidInputError("held_bytes", received=held_bytes, allowed="0 or more")
    hold = Hold(left_bytes=held_bytes, lock=threading.Lock())
    _allow_open_files(urls)
    # Several at once: a bucket elsewhere answers slowly but many at a time.
    with ThreadPoolExecutor(min(_NUM_SCANNERS, len(urls)), "lockstep-scan") as executor:
        return list(executor.map(lambda url: RecordFile(url, hold=hold, on_error=on_error), urls))
