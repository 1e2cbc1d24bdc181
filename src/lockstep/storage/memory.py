"""A bucket in the memory of this process, for tests and for objects that need not outlive the process."""

from __future__ import annotations

import builtins
import io
import threading
import time
from pathlib import Path
from typing import BinaryIO, Final, final

from lockstep.errors import InvalidInputError
from lockstep.storage.base import AbstractBucket, StoredObject

_LOCK: Final = threading.Lock()
_OBJECTS: Final[dict[str, tuple[bytes, float]]] = {}


@final
class MemoryBucket(AbstractBucket):
    """A bucket whose objects are in one dictionary of the process. All buckets with the same URL share their objects.

    Args:
        url: the bucket's URL: ``memory://name`` or ``memory://name/prefix``.
    """

    def _find(self, key: str) -> tuple[bytes, float]:
        with _LOCK:
            try:
                return _OBJECTS[f"{self.url}/{key}"]
            except KeyError:
                raise FileNotFoundError(key) from None

    def _create(self) -> None:
        raise InvalidInputError(f"{self.url} is in this process's memory and does not have to be created")

    def _read(self, key: str, start_byte: int, end_byte: int | None) -> bytes:
        return self._find(key)[0][start_byte:end_byte]

    def _write(self, key: str, data: bytes) -> None:
        with _LOCK:
            _OBJECTS[f"{self.url}/{key}"] = (bytes(data), time.time())

    def _upload(self, key: str, source: Path) -> None:
        self._write(key, source.read_bytes())

    def _download(self, key: str, target: Path) -> None:
        target.write_bytes(self._find(key)[0])

    def _list(self, prefix: str, *, follows_links: bool) -> builtins.list[StoredObject]:
        start = f"{self.url}/"
        with _LOCK:
            return [
                StoredObject(key=url.removeprefix(start), size_bytes=len(data), modified_time_s=time_s)
                for url, (data, time_s) in _OBJECTS.items()
                if url.startswith(start + prefix)
            ]

    def _size_bytes(self, key: str) -> int:
        return len(self._find(key)[0])

    def _open(self, key: str) -> BinaryIO:
        return io.BytesIO(self._find(key)[0])

    def _move(self, key: str, to: str) -> bool:
        with _LOCK:
            try:
                _OBJECTS[f"{self.url}/{to}"] = _OBJECTS.pop(f"{self.url}/{key}")
            except KeyError:
                raise FileNotFoundError(key) from None
        return False

    def _delete(self, key: str) -> None:
        with _LOCK:
            _OBJECTS.pop(f"{self.url}/{key}", None)
