"""Reads the records of ArrayRecord files by number, with the index that the files contain.

Uses the optional package ``array_record``, which reads local files only. Remote files are first copied into the home's
cache, up to a limit.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from lockstep.data.files.framing import HEADER_BYTES, is_header
from lockstep.data.files.numbered import AbstractRecordSource, name_of
from lockstep.data.files.record_batch import RecordBatch
from lockstep.data.files.shards import find_shards
from lockstep.data.files.skipping import OnError
from lockstep.errors import CorruptDataError, InvalidInputError, MissingInputError
from lockstep.home import Home
from lockstep.storage import open_bucket, split_url
from lockstep.storage.local import LocalBucket

DEFAULT_CACHED_BYTES: Final = 8 << 30
_MAGIC: Final = bytes.fromhex("83af70d10d884a3f")
"""The checksum of the first block's header, which is the same in all files of this format (Riegeli/records)."""

_NUM_OPENERS: Final = 8


def is_array_record(head: bytes) -> bool:
    """Whether a file is an ArrayRecord file.

    A TFRecord file with the same first bytes would have a first record of 4 exabytes. The file is not taken for an
    ArrayRecord file if the checksum of that length matches.

    Args:
        head: the file's first bytes, 12 or more.
    """
    return head.startswith(_MAGIC) and not is_header(head[:HEADER_BYTES])


@final
class ArrayRecordSource(AbstractRecordSource["_File"]):
    """The records of one or more ArrayRecord files as a sequence of bytes: a Grain ``RandomAccessDataSource``.

    It has the interface of `lockstep.data.RecordSource`. It may be pickled, and read from any thread.

    Args:
        urls: a pattern (see `lockstep.storage.glob_urls`), of which each shard must exist; or the URLs of files. The
            records are numbered across the files: in sorted order of the files for a pattern, in the given order for
            URLs.
        cached_bytes: the most bytes that copies of remote files may occupy in the home's cache, including the copies of
            other sources. Copies stay in the cache until somebody deletes them.
        on_error: the policy for damaged records: "raise", or `Skip`, as for `lockstep.data.RecordSource`. A file that
            cannot be opened always raises an error.

    Raises:
        MissingInputError: no file was found, or a shard is missing.
        CorruptDataError: a file is cut off or damaged, or is not an ArrayRecord file.
        InvalidInputError: the package ``array_record`` is not installed, or the copies would exceed ``cached_bytes``.
        StorageError: a file could not be read.
    """

    def __init__(
        self,
        urls: str | os.PathLike[str] | Sequence[str],
        *,
        cached_bytes: int = DEFAULT_CACHED_BYTES,
        on_error: OnError = "raise",
    ) -> None:
        if cached_bytes < 0:
            raise InvalidInputError("cached_bytes", received=cached_bytes, allowed="0 or more")
        _reader_class()
        copies = _Copies(max_bytes=cached_bytes)
        found = find_shards(urls)
        with ThreadPoolExecutor(min(_NUM_OPENERS, len(found)), "lockstep-array-record") as executor:
            files = list(executor.map(lambda url: _File(url, path=copies.path_of(url)), found))
        super().__init__(files, name=name_of(urls), on_error=on_error)

    def _read(
        self, wanted: Sequence[tuple[_File, np.ndarray]], rows: Sequence[np.ndarray], *, num_records: int
    ) -> RecordBatch:
        """Reads records as the base class describes."""
        records = [b""] * num_records
        for (file, numbers), chosen in zip(wanted, rows, strict=True):
            for place, record in zip(chosen.tolist(), file.read(numbers.tolist()), strict=True):
                records[place] = record
        return RecordBatch.of(records)


@final
class _File:
    """One ArrayRecord file. After unpickling, it is opened again when it is first read.

    Args:
        url: the file's URL.
        path: the path of the local file, or of the local copy of a remote file.
    """

    def __init__(self, url: str, *, path: Path) -> None:
        self.url = url
        self._path = path
        self._lock = threading.Lock()
        self._reader: Any = self._open()
        self.num_records = int(self._reader.num_records())

    def read(self, numbers: list[int]) -> list[bytes]:
        """Reads records by their numbers in the file."""
        with self._lock:  # only opening needs the lock: several threads may read at once
            if self._reader is None:
                self._reader = self._open()
            reader = self._reader
        try:
            return reader.read(numbers)
        except RuntimeError as error:
            raise self._name_damage(reader, numbers, error) from None

    def _name_damage(self, reader: Any, numbers: list[int], error: RuntimeError) -> CorruptDataError:
        """Returns the error that names the damaged record, found by reading the records one by one."""
        for number in numbers:
            try:
                reader.read([number])
            except RuntimeError as one:
                return _damaged(f"{self.url}: record {number}: {_reason(one)}")
        return _damaged(f"{self.url}: one of {len(numbers)} records: {_reason(error)}")

    def _open(self) -> Any:
        if not self._path.is_file():
            raise MissingInputError(f"there is no object {self.url}, or no copy of it at {self._path} any more")
        with open(self._path, "rb") as file:
            if not is_array_record(file.read(HEADER_BYTES)):
                raise CorruptDataError(
                    f"{self.url}: it is not an ArrayRecord file",
                    action="name files of one kind (lockstep.data.records reads each kind), or copy it again",
                )
        reader = _reader_class()(str(self._path))
        if not reader.ok():
            raise _damaged(f"{self.url}: the file is cut off or damaged: its index cannot be read")
        return reader

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self.url, "_path": self._path, "num_records": self.num_records}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()
        self._reader = None


@final
class _Copies:
    """The folder of the home's cache with local copies of remote files.

    Args:
        max_bytes: the most bytes that the copies may occupy.
    """

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._folder = Home.from_env().cache / "array_records"
        self._lock = threading.Lock()
        self._downloading: dict[str, int] = {}

    def path_of(self, url: str) -> Path:
        """Returns the local path of a file; a remote file is copied unless its copy already exists."""
        bucket_url, key = split_url(url)
        bucket = open_bucket(bucket_url)
        if isinstance(bucket, LocalBucket):
            return Path(bucket.url_of(key))
        found = [item for item in bucket.list(key) if item.key == key]
        if not found:
            raise MissingInputError(f"there is no object {url}")
        (item,) = found
        # The name of the copy depends on the file's length and time, so a replaced file is copied again.
        state = f"{bucket.url_of(key)}\n{item.size_bytes}\n{item.modified_time_s}"
        path = self._folder / f"{hashlib.sha256(state.encode()).hexdigest()}.array_record"
        if path.is_file() and path.stat().st_size == item.size_bytes:
            return path
        with self._lock:
            held = sum(self._downloading.values()) + self._held_bytes()
            if held + item.size_bytes > self._max_bytes:
                raise InvalidInputError(
                    f"copies of ArrayRecord files would exceed the limit in {self._folder}",
                    received=f"{held + item.size_bytes} bytes with {url}",
                    allowed=f"{self._max_bytes} bytes, by cached_bytes",
                    action="delete older copies, allow more, or take TFRecord files, which are read in place",
                )
            self._downloading[path.name] = item.size_bytes
        try:
            bucket.download(key, path=path)
        finally:
            with self._lock:
                self._downloading.pop(path.name, None)
        return path

    def _held_bytes(self) -> int:
        num_bytes = 0
        for path in self._folder.glob("*.array_record"):
            if path.name not in self._downloading:
                with suppress(FileNotFoundError):  # somebody may be deleting older copies
                    num_bytes += path.stat().st_size
        return num_bytes


def _reader_class() -> Any:
    try:
        from array_record.python.array_record_module import ArrayRecordReader  # an extra
    except ImportError:
        raise InvalidInputError(
            "ArrayRecord files need the package array-record, which is not installed",
            action="run: pip install 'lockstep-train[arrayrecord]'",
        ) from None
    return ArrayRecordReader


def _damaged(what: str) -> CorruptDataError:
    return CorruptDataError(what, action="copy the file again from its source, or pack it again")


def _reason(error: RuntimeError) -> str:
    return str(error).partition(" [")[0].strip()[:200]
