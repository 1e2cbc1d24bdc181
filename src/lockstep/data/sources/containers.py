"""Containers of a data set's files: a folder of a bucket, or a zip archive that is read without extracting it.

The names in an archive are not trusted: they are used only as keys, never as local paths.
"""

from __future__ import annotations

import os
import threading
import weakref
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from lockstep.data.sources.base import latest_time_s
from lockstep.errors import CorruptDataError, MissingInputError
from lockstep.storage import open_bucket, split_url

MAX_FILE_BYTES: Final = 1 << 28
"""The maximum length of a file of a data set, in bytes, because an archive may decompress to any length."""

_ENCRYPTED: Final = 0x1
_PIECE_BYTES: Final = 1 << 18
_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_OTHER_METHODS: Final = {zipfile.ZIP_BZIP2: "bzip2", zipfile.ZIP_LZMA: "LZMA"}
_MOST_UNPACKED: Final = 1032


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class ContainedFile:
    """One file of a container.

    Attributes:
        name: the path of the file within the container: names joined by "/".
        number: the number of the file in the container, from 0.
        size_bytes: the uncompressed length of the file in bytes.
        version: a value that changes with the file: its modification time or a checksum.
    """

    name: str
    number: int
    size_bytes: int
    version: float


class AbstractContainer(ABC):
    """A container of named files. May be read from several threads."""

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL of the container."""

    @property
    @abstractmethod
    def files(self) -> Sequence[ContainedFile]:
        """All files, sorted by name."""

    @property
    @abstractmethod
    def changed_time_s(self) -> float | None:
        """The modification time of the newest file, in seconds since 1970 UTC.

        None if the versions of the files are checksums; infinity if a file's time is unknown.
        """

    @abstractmethod
    def read(self, file: ContainedFile) -> bytes:
        """Reads one file.

        Raises:
            CorruptDataError: the file is damaged, encrypted or too long.
            StorageError: the file could not be read.
        """


@final
class FolderContainer(AbstractContainer):
    """The files under a folder, at every depth.

    Args:
        url: the folder's path, or a bucket's URL.
    """

    def __init__(self, url: str) -> None:
        self._bucket = open_bucket(url)
        self._files = tuple(
            ContainedFile(name=item.key, number=number, size_bytes=item.size_bytes, version=item.modified_time_s)
            for number, item in enumerate(self._bucket.list())
        )

    @property
    def url(self) -> str:
        """See the base class."""
        return self._bucket.url

    @property
    def files(self) -> Sequence[ContainedFile]:
        """See the base class."""
        return self._files

    @property
    def changed_time_s(self) -> float:
        """See the base class."""
        return latest_time_s(file.version for file in self._files)

    def read(self, file: ContainedFile) -> bytes:
        """See the base class."""
        _check_length(file)
        return self._bucket.read(file.name)


@final
class ZipContainer(AbstractContainer):
    """The files of a zip archive.

    Args:
        url: the archive's path, or an object's URL.

    Raises:
        MissingInputError: the archive does not exist.
        CorruptDataError: the file is not a zip archive.
    """

    def __init__(self, url: str) -> None:
        bucket_url, key = split_url(url)
        bucket = open_bucket(bucket_url)
        self._url = bucket.url_of(key)
        self._lock = threading.Lock()
        file = bucket.open(key)
        weakref.finalize(self, file.close)
        try:
            self._archive = zipfile.ZipFile(file)
        except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
            raise CorruptDataError(f"{url}: not a zip archive that can be read ({error})") from None
        self._entries = [entry for entry in self._archive.infolist() if not entry.is_dir()]
        files = (
            ContainedFile(name=entry.filename, number=number, size_bytes=entry.file_size, version=entry.CRC)
            for number, entry in enumerate(self._entries)
        )
        self._files = tuple(sorted(files, key=lambda file: file.name))

    @property
    def url(self) -> str:
        """See the base class."""
        return self._url

    @property
    def files(self) -> Sequence[ContainedFile]:
        """See the base class."""
        return self._files

    @property
    def changed_time_s(self) -> None:
        """None: the archive has checksums."""
        return

    def read(self, file: ContainedFile) -> bytes:
        """See the base class."""
        _check_length(file)
        entry = self._entries[file.number]
        if entry.flag_bits & _ENCRYPTED:
            raise CorruptDataError("it is encrypted")
        check_entry(entry)
        try:
            with self._lock:  # opening and closing change the archive's state; only reads may run in parallel
                opened = self._archive.open(entry)
            try:
                # Reading in pieces stops at the stated length and verifies the checksum. A single read of everything
                # would first decompress all of it, however long it is.
                return b"".join(iter(lambda: opened.read(_PIECE_BYTES), b""))
            finally:
                with self._lock:
                    opened.close()
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
            raise CorruptDataError(f"it cannot be unpacked: {error}") from None


def open_container(url: str) -> AbstractContainer:
    """Opens a folder or a zip archive.

    Raises:
        MissingInputError: the folder or archive has no files or does not exist.
        CorruptDataError: a file with the suffix ``.zip`` is not a zip archive.
    """
    container: AbstractContainer
    container = ZipContainer(url) if os.fspath(url).lower().endswith(".zip") else FolderContainer(url)
    if not container.files:
        raise MissingInputError(f"no file is in {url}", allowed="a folder of images, one subfolder for each class")
    return container


def check_entry(entry: zipfile.ZipInfo) -> None:
    """Rejects a file of an archive that cannot be decompressed in bounded memory, or that states an impossible length.

    Raises:
        CorruptDataError: the compression method is neither store nor deflate, so that Python does not bound the memory
            for decompression; or the stated length is longer than the compressed bytes can decompress to.
    """
    if entry.compress_type not in _METHODS:
        raise CorruptDataError(
            "unsupported compression method",
            received=_OTHER_METHODS.get(entry.compress_type, entry.compress_type),
            allowed="store, deflate",
            action="pack the archive again, by deflate",
        )
    if entry.file_size > _MOST_UNPACKED * entry.compress_size:
        raise CorruptDataError(
            "the stated length is impossible",
            received=f"{entry.file_size:,} bytes, of {entry.compress_size:,} packed ones",
        )


def _check_length(file: ContainedFile) -> None:
    if file.size_bytes > MAX_FILE_BYTES:
        raise CorruptDataError("it is too long", received=f"{file.size_bytes:,} bytes", allowed=f"{MAX_FILE_BYTES:,}")
