"""Files of records that are compressed as a whole, as TensorFlow's ``TFRecordOptions`` writes them: GZIP and ZLIB.

Such a file can be read from its beginning alone. So there is no record by number, no order over all records, no
sharding by record; and who goes on in the midst of a file unpacks it again up to there.
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
    """The records of compressed files in order: a Grain dataset of bytes, to which Grain's transformations apply.

    With a ``cycle_length`` of n it takes records from n files in turn, one of each; when a file ends, the next one
    takes its place. So the order is a function of the files alone. An iterator's state says how many records of which
    files it has read; one that is set unpacks those files again up to there.

    It may be pickled. Grain's ``mp_prefetch`` gives each worker files of its own.

    Args:
        urls: a pattern (see `lockstep.storage.glob_urls`), of which each shard has to be there; or the URLs of files.
            They are read in sorted order (of a pattern) or in the order given.
        compression: how all files are compressed; None takes it from each file's beginning.
        cycle_length: from how many files records are taken in turn.

    Raises:
        MissingInputError: nothing was found, or a shard is missing.
        CorruptDataError: a shard is there twice, or under two numbers of shards.
        InvalidInputError: an argument is out of its range.
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
        """The files, in their order."""
        return self._urls

    @property
    def num_files(self) -> int:
        """How many files there are."""
        return len(self._urls)

    def take_files(self, files: Sequence[int]) -> CompressedRecords:
        """Returns the records of some of the files: what one of several workers reads.

        Args:
            files: their numbers, from 0.
        """
        urls = [self._urls[file] for file in files]
        return CompressedRecords(urls, compression=self._compression, cycle_length=self._cycle_length)

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:  # noqa: FBT001 - Grain's protocol
        """Leaves every n-th file, for a worker of Grain's ``mp_prefetch``, in place."""
        self._urls = self._urls[sl]

    def __iter__(self) -> grain.DatasetIterator:
        """Returns an iterator over all records."""
        return _CompressedIterator(self._urls, compression=self._compression, cycle_length=self._cycle_length)

    def __str__(self) -> str:
        """Says the number of files; Grain shows it."""
        return f"CompressedRecords({len(self._urls)} files)"


@final
class _OpenFile:
    """A file that is being read, from some record on.

    Args:
        file: its number.
        url: where it is.
        num_read: how many of its records were read before.
        compression: how it is compressed.
    """

    def __init__(self, file: int, url: str, *, num_read: int, compression: Compression | None) -> None:
        self.file = file
        self.num_read = num_read
        self._url = url
        self._compression: Compression | None = compression
        self._records: Iterator[bytes] | None = None

    def read(self) -> bytes | None:
        """Returns the next record; None at the end."""
        if self._records is None:
            self._records = read_compressed(self._url, compression=self._compression)
            for number in range(self.num_read):
                if next(self._records, None) is None:
                    raise CorruptDataError(
                        f"{self._url}: {number} records found, {self.num_read} were read of it before",
                        action="the file is another one: begin anew, or put the one back that was there",
                    )
        record = next(self._records, None)
        self.num_read += record is not None
        return record

    def close(self) -> None:
        if self._records is not None:
            self._records.close()  # type: ignore[attr-defined] # a generator, whose file is open
        self._records = None


@final
class _CompressedIterator(grain.DatasetIterator):
    """The records that are left."""

    def __init__(self, urls: tuple[str, ...], *, compression: Compression | None, cycle_length: int) -> None:
        super().__init__()
        self._urls = urls
        self._compression: Compression | None = compression
        self._cycle_length = cycle_length
        self._next_file = 0
        self._open: deque[_OpenFile] = deque()
        """Files that are open, the one whose turn it is first."""

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
                file.close()  # after an error the same record is next
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
                "the state of an iteration over compressed files is of others",
                received=f"{state['num_files']} files, {len(is_open)} of them open",
                allowed=f"{len(self._urls)} files, at most {self._cycle_length} open",
                action="read the same files with the same cycle_length, or begin anew",
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
