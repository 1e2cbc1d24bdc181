"""Where files of a data set lie: a folder of a bucket, or a zip archive that is read without unpacking it.

The names in an archive are anybody's words: they are read as keys, and never become paths of this machine.
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

from lockstep.data.sources.base import newest
from lockstep.errors import CorruptDataError, MissingInputError
from lockstep.storage import open_bucket, split_url

MAX_FILE_BYTES: Final = 1 << 28
"""What a file of a data set may have at most: an archive may state a small size and unpack to anything."""

_ENCRYPTED: Final = 0x1
_PIECE_BYTES: Final = 1 << 18
_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_OTHER_METHODS: Final = {zipfile.ZIP_BZIP2: "bzip2", zipfile.ZIP_LZMA: "LZMA"}
_MOST_UNPACKED: Final = 1032


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class ContainedFile:
    """One file.

    Attributes:
        name: its path within the container, names joined by "/".
        number: its place in the container, by which it is read.
        size_bytes: its length, unpacked.
        version: what changes when the file does: a time or a checksum.
    """

    name: str
    number: int
    size_bytes: int
    version: float


class AbstractContainer(ABC):
    """Files by name. May be read from several threads."""

    @property
    @abstractmethod
    def url(self) -> str:
        """Where it is."""

    @property
    @abstractmethod
    def files(self) -> Sequence[ContainedFile]:
        """All files, sorted by name."""

    @property
    @abstractmethod
    def changed_time_s(self) -> float | None:
        """When the newest file was changed last, in seconds since the epoch; None where versions are checksums.

        Infinity where a time is not known.
        """

    @abstractmethod
    def read(self, file: ContainedFile) -> bytes:
        """Reads one file.

        Raises:
            CorruptDataError: it is damaged, encrypted or too long.
            StorageError: it could not be read.
        """


@final
class FolderContainer(AbstractContainer):
    """The files under a folder, at every depth.

    Args:
        url: the folder: a path or a bucket's URL.
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
        return newest(file.version for file in self._files)

    def read(self, file: ContainedFile) -> bytes:
        """See the base class."""
        _check_length(file)
        return self._bucket.read(file.name)


@final
class ZipContainer(AbstractContainer):
    """The files of a zip archive.

    Args:
        url: the archive: a path or an object's URL.

    Raises:
        MissingInputError: there is no such archive.
        CorruptDataError: it is no zip archive.
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
        """None: an archive states checksums."""
        return

    def read(self, file: ContainedFile) -> bytes:
        """See the base class."""
        _check_length(file)
        entry = self._entries[file.number]
        if entry.flag_bits & _ENCRYPTED:
            raise CorruptDataError("it is encrypted")
        check_entry(entry)
        try:
            with self._lock:  # an archive counts its readers, and only the reading itself may go on side by side
                opened = self._archive.open(entry)
            try:
                # It ends at the stated size, and checks the checksum. A whole read would unpack all of it first.
                return b"".join(iter(lambda: opened.read(_PIECE_BYTES), b""))
            finally:
                with self._lock:
                    opened.close()
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
            raise CorruptDataError(f"it cannot be unpacked: {error}") from None


def open_container(url: str) -> AbstractContainer:
    """Opens a folder or a zip archive.

    Raises:
        MissingInputError: there is nothing.
        CorruptDataError: it is no zip archive.
    """
    container: AbstractContainer
    container = ZipContainer(url) if os.fspath(url).lower().endswith(".zip") else FolderContainer(url)
    if not container.files:
        raise MissingInputError(f"no file is in {url}", allowed="a folder of images, one subfolder for each class")
    return container


def check_entry(entry: zipfile.ZipInfo) -> None:
    """Refuses a file of an archive that cannot be unpacked within bounded memory, or cannot be as long as it states.

    Raises:
        CorruptDataError: it is packed by another method than deflate, whose unpacking Python does not bound, or states
            a length that its packed bytes cannot unpack to.
    """
    if entry.compress_type not in _METHODS:
        raise CorruptDataError(
            "it is packed by another method",
            received=_OTHER_METHODS.get(entry.compress_type, entry.compress_type),
            allowed="store, deflate",
            action="pack the archive again, by deflate",
        )
    if entry.file_size > _MOST_UNPACKED * entry.compress_size:
        raise CorruptDataError(
            "it states a length that it cannot unpack to",
            received=f"{entry.file_size:,} bytes, of {entry.compress_size:,} packed ones",
        )


def _check_length(file: ContainedFile) -> None:
    if file.size_bytes > MAX_FILE_BYTES:
        raise CorruptDataError("it is too long", received=f"{file.size_bytes:,} bytes", allowed=f"{MAX_FILE_BYTES:,}")
