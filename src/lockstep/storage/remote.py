"""The base class of the clouds' buckets, which uses a few calls of an fsspec file system."""

from __future__ import annotations

import builtins
import errno
import io
import os
from abc import abstractmethod
from collections.abc import Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, Final, cast, final

from lockstep.errors import InvalidInputError
from lockstep.storage.base import AbstractBucket, StoredObject, bucket_exists_error
from lockstep.storage.faults import Fault, IncompleteResponseError, find_fault
from lockstep.storage.retrying import DEFAULT_POLICY, RetryPolicy

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

READ_AHEAD_BYTES: Final = 8 << 20
"""The size of the buffer of an open object: the number of bytes that one read fetches."""

PIECE_BYTES: Final = 16 << 20
"""The length of the pieces in which an object is downloaded. A dropped connection costs only one piece."""

LARGE_BYTES: Final = 48 << 20
"""The length from which clients may upload an object in parts and retry each part separately."""

_NUM_DOWNLOADERS: Final = 8
_NUM_PART_ATTEMPTS: Final = 3
_COPY_TIMEOUT_S: Final = 300.0


class AbstractRemoteBucket(AbstractBucket):
    """A bucket that uses an fsspec file system whose put of an object is atomic.

    Args:
        url: the bucket's URL, with an optional prefix, without a trailing "/".
        policy: the policy for retries and timeouts.

    Raises:
        InvalidInputError: the client package for this kind of bucket is not installed.
    """

    whole_read_options: ClassVar[Mapping[str, Any]] = {}
    """The options that make the file system read a whole object in one request, and so from a single write."""

    def __init__(self, url: str, *, policy: RetryPolicy = DEFAULT_POLICY) -> None:
        super().__init__(url, policy=policy)
        self._root = self._path_of_root()
        self._connection = self._connect_here()

    def _connect_here(self) -> tuple[int, Any]:
        return os.getpid(), self._connect(self._policy, num_attempts=1)

    @property
    def _files(self) -> Any:  # fsspec is not typed, and each file system has its own class
        """The file system of this process, connected again after a fork: threads and connections do not survive it."""
        if self._connection[0] != os.getpid():
            self._connection = self._connect_here()
        return self._connection[1]

    @abstractmethod
    def _connect(self, policy: RetryPolicy, *, num_attempts: int) -> Any:  # fsspec is not typed
        """Returns an fsspec file system that does not cache listings. May be called several times.

        Args:
            policy: the policy with the timeouts for connections and responses.
            num_attempts: the number of attempts that the file system makes at each request. The bucket's own retries
                multiply this number.
        """

    @abstractmethod
    def _path_of_root(self) -> str:
        """Returns the bucket's root as a path of the file system, without a trailing "/"."""

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    @final
    def _create(self) -> None:
        name, separator, _ = self._root.partition("/")
        if separator:
            raise InvalidInputError(
                "a prefix of a bucket does not have to be created",
                received=self.url,
                allowed=self.url.removesuffix(self._root) + name,
            )
        # Checked first, because stores respond with 409 both for an existing bucket and for a transient conflict.
        if self._files.exists(name):
            raise bucket_exists_error(self.url)
        try:
            self._files.mkdir(name)
        except FileExistsError:
            raise bucket_exists_error(self.url) from None

    @final
    def _read(self, key: str, start_byte: int, end_byte: int | None) -> bytes:
        path = self._path(key)
        if (start_byte, end_byte) == (0, None):
            return cast("bytes", self._files.cat_file(path, **self.whole_read_options))
        if start_byte == end_byte:
            self._size_bytes(key)  # HTTP has no empty range, but a missing object has to raise
            return b""
        try:
            data = cast("bytes", self._files.cat_file(path, start=start_byte, end=end_byte))
        except Exception as error:
            # Object stores reject a range that begins at or behind the object's end.
            if find_fault(error) is Fault.BAD_RANGE and self._size_bytes(key) <= start_byte:
                return b""
            raise
        if end_byte is None or len(data) == end_byte - start_byte:
            return data
        # Fewer bytes are correct if the object ends within the range. Otherwise the response is incomplete.
        num_there = max(0, min(end_byte, self._size_bytes(key)) - start_byte)
        if len(data) != num_there:
            raise IncompleteResponseError(f"received {len(data)} of {num_there} requested bytes")
        return data

    @final
    def _write(self, key: str, data: bytes) -> None:
        with _missing_bucket():
            self._writer(len(data)).pipe_file(self._path(key), data)

    @final
    def _upload(self, key: str, source: Path) -> None:
        size_bytes = source.stat().st_size
        with _missing_bucket():
            self._writer(size_bytes).put_file(str(source), self._path(key))

    def _writer(self, size_bytes: int) -> Any:
        if size_bytes < LARGE_BYTES:
            return self._files
        # The file system retries each part, because a retry of the whole call would upload all parts again.
        return self._connect(self._policy, num_attempts=_NUM_PART_ATTEMPTS)

    @final
    def _download(self, key: str, target: Path) -> None:
        size_bytes = self._size_bytes(key)

        with open(target, "wb") as file:

            def fetch(start_byte: int) -> None:
                end_byte = min(start_byte + PIECE_BYTES, size_bytes)
                data = self.read(key, start_byte=start_byte, end_byte=end_byte)
                if len(data) != end_byte - start_byte:
                    raise IncompleteResponseError("the object became shorter while it was read")
                os.pwrite(file.fileno(), data, start_byte)

            starts = range(0, size_bytes, PIECE_BYTES)
            with ThreadPoolExecutor(min(_NUM_DOWNLOADERS, max(1, len(starts))), "lockstep-download") as executor:
                for _ in executor.map(fetch, starts):
                    pass

    @final
    def _list(self, prefix: str, *, follows_links: bool) -> builtins.list[StoredObject]:
        folder = prefix.rpartition("/")[0]
        with _missing_bucket():
            found: dict[str, dict[str, Any]] = self._files.find(
                f"{self._root}/{folder}" if folder else self._root, detail=True
            )
        objects: builtins.list[StoredObject] = []
        for path, details in found.items():
            key = path.removeprefix(f"{self._root}/")
            if key.startswith(prefix):
                objects.append(
                    StoredObject(key=key, size_bytes=int(details["size"]), modified_time_s=_modified_time_s(details))
                )
        return objects

    @final
    def _size_bytes(self, key: str) -> int:
        details: dict[str, Any] = self._files.info(self._path(key))
        if details["type"] != "file":
            raise FileNotFoundError(key)
        return int(details["size"])

    @final
    def _open(self, key: str) -> BinaryIO:
        file = io.BufferedReader(_RangeReader(self, key, size_bytes=self._size_bytes(key)), READ_AHEAD_BYTES)
        return cast("BinaryIO", file)

    @final
    def _move(self, key: str, to: str) -> bool:
        # The store copies the object, and may send nothing until the copy is complete.
        size_bytes = self._size_bytes(key)
        policy = replace(self._policy, read_timeout_s=max(self._policy.read_timeout_s, _COPY_TIMEOUT_S))
        files = self._files if size_bytes < LARGE_BYTES else self._connect(policy, num_attempts=_NUM_PART_ATTEMPTS)
        files.cp_file(self._path(key), self._path(to))
        return True

    @final
    def _delete(self, key: str) -> None:
        with suppress(FileNotFoundError):
            self._files.rm_file(self._path(key))


@final
class _RangeReader(io.RawIOBase):
    """An object as an unbuffered file. Each read is a read of the bucket, with its retries and error messages."""

    def __init__(self, bucket: AbstractBucket, key: str, *, size_bytes: int) -> None:
        super().__init__()
        self._bucket = bucket
        self._key = key
        self._size_bytes = size_bytes
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size_bytes}[whence]
        if base + offset < 0:
            raise ValueError(f"a negative position: {base + offset}")
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        data = self._read_up_to(self._position + len(view))
        view[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        return self._read_up_to(self._size_bytes)

    def _read_up_to(self, end_byte: int) -> bytes:
        end_byte = min(end_byte, self._size_bytes)
        if self._position >= end_byte:
            return b""
        data = self._bucket.read(self._key, start_byte=self._position, end_byte=end_byte)
        self._position += len(data)
        return data


@contextmanager
def _missing_bucket() -> Generator[None]:
    """Replaces the FileNotFoundError of a listing or a write with one that says that the bucket is missing.

    The clients' messages have an address of their own instead.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, "there is no such bucket") from error


def missing_extra(url: str, *, extra: str, package: str) -> InvalidInputError:
    """Returns the error for a bucket whose client is not installed."""
    return InvalidInputError(
        f"cannot open {url}: the package {package} is not installed",
        action=f"run: pip install 'lockstep-train[{extra}]'",
    )


def _modified_time_s(details: dict[str, Any]) -> float:
    # Each file system has its own name and type for the time: gcsfs "updated" (text), s3fs "LastModified" (datetime),
    # others "mtime" or "created" (seconds).
    value = next((details[name] for name in ("updated", "LastModified", "mtime", "created") if details.get(name)), 0.0)
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    return float(value)
