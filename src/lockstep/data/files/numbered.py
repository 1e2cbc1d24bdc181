"""The base class of record sources: the records of several files, numbered consecutively across the files."""

from __future__ import annotations

import copy
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, Protocol, Self, SupportsIndex, TypeVar, final

import numpy as np

from lockstep.data.files.record_batch import RecordBatch
from lockstep.data.files.skipping import OnError, SkippedRecords
from lockstep.errors import CorruptDataError, MissingInputError


class NumberedFile(Protocol):
    """A file whose records have numbers."""

    url: str

    @property
    def num_records(self) -> int:
        """The number of records."""
        ...


File = TypeVar("File", bound=NumberedFile)


class AbstractRecordSource(ABC, Generic[File]):
    """The records of one or more files as a sequence of bytes: a Grain ``RandomAccessDataSource``.

    A source may be pickled, and read from any thread.

    Args:
        files: the files, in the order of their records.
        name: the name of the files for messages.
        on_error: the policy for unreadable records.
    """

    def __init__(self, files: Sequence[File], *, name: str, on_error: OnError) -> None:
        self._name = name
        self._files = list(files)
        self._starts = _starts(self._files)
        self._on_error: OnError = on_error
        self._skipped = SkippedRecords.of(on_error)

    @property
    @final
    def urls(self) -> tuple[str, ...]:
        """The URLs of the files, in the order of their records."""
        return tuple(file.url for file in self._files)

    @property
    @final
    def num_files(self) -> int:
        """The number of files."""
        return len(self._files)

    @property
    @final
    def on_error(self) -> OnError:
        """The policy for unreadable records."""
        return self._on_error

    @property
    @final
    def num_records_by_url(self) -> dict[str, int]:
        """The number of records of each file, by the file's URL."""
        return {file.url: file.num_records for file in self._files}

    @final
    def open_files(self, files: Sequence[int]) -> Self:
        """Returns a source of some of the files, which are already open.

        Args:
            files: the numbers of the files, from 0.
        """
        part = copy.copy(self)
        part._name = f"{len(files)} of the files of {self._name}"
        part._files = [self._files[file] for file in files]
        part._starts = _starts(part._files)
        part._skipped = SkippedRecords.of(self._on_error)
        return part

    @final
    def __len__(self) -> int:
        """Returns the number of records."""
        return int(self._starts[-1])

    @final
    def __getitem__(self, index: SupportsIndex) -> bytes | None:
        """Reads one record by its number. Negative numbers count from the end.

        Returns:
            The record's data; None if the record cannot be read and ``on_error`` is `Skip`.

        Raises:
            IndexError: the number is out of range.
            CorruptDataError: the record is damaged and ``on_error`` is "raise", or more records are unreadable than
                `Skip` allows.
            MissingInputError: the record's file no longer exists.
        """
        number = index.__index__()
        try:
            return self.__getitems__([number])[0]
        except (CorruptDataError, MissingInputError) as error:
            if self._skipped is None:
                raise
            self._skipped.add(number if number >= 0 else number + len(self), str(error))
            return None

    @final
    def __getitems__(self, indices: Sequence[int] | np.ndarray) -> RecordBatch:
        """Reads several records by their numbers, faster than one by one. PyTorch calls the same method by this name.

        Raises:
            IndexError: a number is out of range.
            CorruptDataError: a record is damaged.
            MissingInputError: a file no longer exists.
        """
        numbers = np.asarray(indices, np.int64)
        if numbers.size and not (-len(self) <= numbers.min() and numbers.max() < len(self)):
            raise IndexError(f"{self} has no record {numbers[(numbers < -len(self)) | (numbers >= len(self))][0]}")
        numbers = np.where(numbers < 0, numbers + len(self), numbers)
        files = np.searchsorted(self._starts, numbers, side="right") - 1
        within = numbers - self._starts[files]
        used, which = np.unique(files, return_inverse=True)
        rows = [np.flatnonzero(which == index) for index in range(len(used))]
        wanted = [(self._files[file], within[chosen]) for file, chosen in zip(used.tolist(), rows, strict=True)]
        return self._read(wanted, rows, num_records=len(numbers))

    @abstractmethod
    def _read(
        self, wanted: Sequence[tuple[File, np.ndarray]], rows: Sequence[np.ndarray], *, num_records: int
    ) -> RecordBatch:
        """Reads records of some files.

        Args:
            wanted: the files, each with the numbers of the records to read, integers of shape (k,).
            rows: for each file, the positions of these records in the batch, integers of shape (k,).
            num_records: the number of records in the batch.

        Raises:
            CorruptDataError: a record is damaged.
            MissingInputError: a file no longer exists.
        """

    @final
    def __repr__(self) -> str:
        """Returns a description with the pattern or the number of files, which Grain displays."""
        return f"{type(self).__name__}({self._name})"


def name_of(urls: str | os.PathLike[str] | Sequence[str]) -> str:
    """Returns a name for files: their pattern, or their number."""
    return os.fspath(urls) if isinstance(urls, str | os.PathLike) else f"{len(urls)} files"


def _starts(files: Sequence[NumberedFile]) -> np.ndarray:
    return np.cumsum([0, *(file.num_records for file in files)])
