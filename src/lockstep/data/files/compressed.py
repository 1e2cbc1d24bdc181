"""Reads record files that are compressed as a whole with GZIP or ZLIB, as TensorFlow's ``TFRecordOptions`` writes them.

Such a file can only be read from its beginning. So there are no records by number, no order over all records and no
sharding by record, and resuming in the middle of a file decompresses it again up to that position.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, final

import grain

from lockstep.data.files.compression import WINDOW_BITS, Compression, read_compressed, without_suffix
from lockstep.data.files.shards import check_complete, find_shards
from lockstep.errors import CorruptDataError, InvalidInputError


@final
class CompressedRecords(grain.IterDataset):
    """The records of compressed files in order: a Grain dataset of bytes, which supports Grain's transformations.

    Reads from ``cycle_length`` files in turn, one record from each. When a file ends, the next file takes its place. So
    the order depends only on the files and on ``cycle_length``. An iterator's state has the open files, with the number
    of records read from each; restoring a state decompresses these files again up to that position.

    The dataset may be pickled. Grain's ``mp_prefetch`` gives each worker files of its own.

    Args:
        urls: a pattern (see `lockstep.storage.glob_urls`), of which each shard must exist; or the URLs of files. The
            files are read in sorted order for a pattern, in the given order for URLs.
        compression: the compression of all files; None detects it from each file's beginning.
        cycle_length: the number of files to read from in turn, 1 or more.

    Raises:
        MissingInputError: no file was found, or a shard is missing.
        CorruptDataError: a shard exists twice, or with two different numbers of shards.
        InvalidInputError: an argument is out of range.
    """

    def __init__(
        self,
        urls: str | os.PathLike[str] | Sequence[str],
        *,
        compression: Compression | None = None,
        cycle_length: int = 1,
    ) -> None:
        super().__init__()
        if compression not in (None, *WINDOW_BITS):
            raise InvalidInputError("a compression of files", received=compression, allowed=("GZIP", "ZLIB", "None"))
        if cycle_length < 1:
            raise InvalidInputError("cycle_length", received=cycle_length, allowed="1 or more")
        self._urls = tuple(find_shards(urls))
        if isinstance(urls, str | os.PathLike):
            pattern = os.fspath(urls)
            check_complete(map(without_suffix, self._urls), what=pattern.rsplit("/", 1)[-1])
        self._compression: Compression | None = compression
        self._cycle_length = cycle_length

    @property
    def urls(self) -> tuple[str, ...]:
        """The URLs of the files, in order."""
        return self._urls

    @property
    def num_files(self) -> int:
        """The number of files."""
        return len(self._urls)

    def take_files(self, files: Sequence[int]) -> CompressedRecords:
        """Returns a dataset of some of the files, such as those of one worker.

        Args:
            files: the numbers of the files, from 0.
        """
        urls = [self._urls[file] for file in files]
        return CompressedRecords(urls, compression=self._compression, cycle_length=self._cycle_length)

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:  # noqa: FBT001 - Grain's protocol
        """Keeps only a slice of the files, in place, for a worker process of Grain's ``mp_prefetch``."""
        self._urls = self._urls[sl]

    def __iter__(self) -> grain.DatasetIterator:
        """Returns an iterator over all records."""
        return _CompressedIterator(self._urls, compression=self._compression, cycle_length=self._cycle_length)

    def __str__(self) -> str:
        """Returns a description with the number of files, which Grain displays."""
        return f"CompressedRecords({len(self._urls)} files)"


@final
class _OpenFile:
    """A file that is being read, starting at some record.

    Args:
        file: the file's number.
        url: the file's URL.
        num_read: the number of its records that were already read, which are skipped.
        compression: the file's compression; None detects it.
    """

    def __init__(self, file: int, url: str, *, num_read: int, compression: Compression | None) -> None:
        self.file = file
        self.num_read = num_read
        self._url = url
        self._compression: Compression | None = compression
        self._records: Iterator[bytes] | None = None

    def read(self) -> bytes | None:
        """Returns the next record; None at the end of the file."""
        if self._records is None:
            self._records = read_compressed(self._url, compression=self._compression)
            for number in range(self.num_read):
                if next(self._records, None) is None:
                    raise CorruptDataError(
                        f"{self._url}: {number} records found, but {self.num_read} were already read",
                        action="the file was replaced: start again, or restore the old file",
                    )
        record = next(self._records, None)
        self.num_read += record is not None
        return record

    def close(self) -> None:
        if self._records is not None:
            self._records.close()  # type: ignore[attr-defined] # a generator; closing it closes its file
        self._records = None


@final
class _CompressedIterator(grain.DatasetIterator):
    """An iterator over the records, whose state can be saved and restored."""

    def __init__(self, urls: tuple[str, ...], *, compression: Compression | None, cycle_length: int) -> None:
        super().__init__()
        self._urls = urls
        self._compression: Compression | None = compression
        self._cycle_length = cycle_length
        self._next_file = 0
        self._open: deque[_OpenFile] = deque()
        """The open files. The next record comes from the first one."""

    def __next__(self) -> bytes:
        self._assert_not_closed()
        while True:
            if len(self._open) < self._cycle_length and self._next_file < len(self._urls):
                self._open.append(self._open_file(self._next_file))
                self._next_file += 1
                continue
            if not self._open:
                raise StopIteration
            file = self._open[0]
            try:
                record = file.read()
            except BaseException:
                file.close()  # so that the next call tries the same record again
                raise
            if record is not None:
                self._open.rotate(-1)
                return record
            self._open.popleft()
            if self._next_file < len(self._urls):
                self._open.appendleft(self._open_file(self._next_file))
                self._next_file += 1

    def _open_file(self, file: int, *, num_read: int = 0) -> _OpenFile:
        return _OpenFile(file, self._urls[file], num_read=num_read, compression=self._compression)

    def get_state(self) -> dict[str, Any]:
        return {
            "num_files": len(self._urls),
            "next_file": self._next_file,
            "open": [[file.file, file.num_read] for file in self._open],
        }

    def set_state(self, state: dict[str, Any]) -> None:
        is_open = [(int(file), int(num_read)) for file, num_read in state["open"]]
        if state["num_files"] != len(self._urls) or len(is_open) > self._cycle_length:
            raise InvalidInputError(
                "the iterator state belongs to other files",
                received=f"{state['num_files']} files, {len(is_open)} of them open",
                allowed=f"{len(self._urls)} files, at most {self._cycle_length} open",
                action="read the same files with the same cycle_length, or start from the beginning",
            )
        self._close_files()
        self._next_file = int(state["next_file"])
        self._open.extend(self._open_file(file, num_read=num_read) for file, num_read in is_open)

    def _close_files(self) -> None:
        for file in self._open:
            file.close()
        self._open.clear()

    def close(self) -> None:
        if not self._closed:
            self._close_files()
        super().close()

    def __str__(self) -> str:
        return f"CompressedRecords({len(self._urls)} files)"
