"""What the clouds' buckets share: the same few calls of an fsspec file system."""

from __future__ import annotations

import builtins
from abc import abstractmethod
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, cast, final

from lockstep.errors import InvalidInputError
from lockstep.storage.base import AbstractBucket, StoredObject


class AbstractRemoteBucket(AbstractBucket):
    """A bucket behind an fsspec file system, whose put of an object is atomic.

    Args:
        url: the bucket, with an optional prefix, without a trailing "/".

    Raises:
        InvalidInputError: the package that talks to this kind of bucket is not installed.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        # fsspec is not typed, and each file system has its own class; what is used of it is below.
        self._files: Any = self._connect()
        self._root = self._path_of_root()

    @abstractmethod
    def _connect(self) -> Any:  # fsspec is not typed
        """Returns the fsspec file system, one that keeps no listing in memory; safe to call again."""

    @abstractmethod
    def _path_of_root(self) -> str:
        """Returns the bucket's root as the file system names it, without a trailing "/"."""

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    @final
    def _read(self, key: str, start_byte: int, end_byte: int | None) -> bytes:
        if (start_byte, end_byte) == (0, None):
            return cast("bytes", self._files.cat_file(self._path(key)))
        # Object stores refuse a range that begins at or after the end.
        size_bytes = self._size_bytes(key)
        end_byte = size_bytes if end_byte is None else min(end_byte, size_bytes)
        if start_byte >= end_byte:
            return b""
        return cast("bytes", self._files.cat_file(self._path(key), start=start_byte, end=end_byte))

    @final
    def _write(self, key: str, data: bytes) -> None:
        self._files.pipe_file(self._path(key), data)

    @final
    def _upload(self, key: str, source: Path) -> None:
        self._files.put_file(str(source), self._path(key))

    @final
    def _download(self, key: str, target: Path) -> None:
        self._files.get_file(self._path(key), str(target))

    @final
    def _list(self, prefix: str) -> builtins.list[StoredObject]:
        folder = prefix.rpartition("/")[0]
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
        self._size_bytes(key)  # some file systems find out at the first read only
        return cast("BinaryIO", self._files.open(self._path(key), "rb"))

    @final
    def _delete(self, key: str) -> None:
        with suppress(FileNotFoundError):
            self._files.rm_file(self._path(key))


def missing_extra(url: str, *, extra: str, package: str) -> InvalidInputError:
    """Returns the error for a bucket whose client is not installed."""
    return InvalidInputError(
        f"cannot open {url}: the package {package} is not installed",
        action=f"run: pip install 'lockstep-train[{extra}]'",
    )


def _modified_time_s(details: dict[str, Any]) -> float:
    # Each file system has its own name and type for it: gcsfs "updated" (text), s3fs "LastModified" (datetime),
    # others "mtime" or "created" (seconds).
    value = next((details[name] for name in ("updated", "LastModified", "mtime", "created") if details.get(name)), 0.0)
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    return float(value)
