"""What every bucket does: objects of bytes under keys, reached by URL."""

from __future__ import annotations

import builtins
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, ClassVar, Final, TypeVar, final

from lockstep.errors import (
    ConflictError,
    InvalidInputError,
    LockstepError,
    MissingInputError,
    StorageError,
    StoragePermissionError,
    StorageWriteError,
)
from lockstep.storage.faults import Fault, describe_fault, describe_unresolved, find_fault
from lockstep.storage.retrying import DEFAULT_POLICY, Attempts, RetryPolicy
from lockstep.storage.temporaries import TEMPORARY_PREFIX, create_temporary, temporary_name

_NUM_SILENT_FAILURES: Final = 3

Result = TypeVar("Result")

logger = logging.getLogger(__name__)


@final
@dataclass(frozen=True, kw_only=True)
class StoredObject:
    """One object of a bucket.

    Attributes:
        key: its name within the bucket.
        size_bytes: its length.
        modified_time_s: when it was last written, in seconds since 1970 (UTC).
    """

    key: str
    size_bytes: int
    modified_time_s: float


class AbstractBucket(ABC):
    """A flat space of objects under a URL; "/" in keys is only a convention, there are no folders.

    An object appears whole or not at all, and the last writer wins. Every method blocks, and may be called from any
    thread. A key is one or more names joined by "/": no leading or trailing "/", no empty name, no "." or "..".
    Where the bucket is a folder, one key cannot be a folder of another ("a" and "a/b").

    A store that throttles, fails or drops a connection is asked again, as the policy says; what is missing, refused or
    not usable is not. `lockstep.storage.faults` decides which is which. Every method may raise, beside what it names:

    - `StorageError`, or `StorageWriteError` of writes: with the URL, how often it was tried, and why it failed;
    - `StoragePermissionError`: credentials are missing, not accepted or not enough.

    Args:
        url: where the bucket is, without a trailing "/".
        policy: how often and how long the store is asked again.
    """

    permission_advice: ClassVar[str] = "use an account that may, or ask the bucket's owner"
    """What to do where the store refuses."""
    credentials_advice: ClassVar[str] = "give credentials that the store knows"
    """What to do where the store does not know who asks."""
    host_advice: ClassVar[str] = "check the network and the name"
    """What to do where no server is known by the store's name."""

    def __init__(self, url: str, *, policy: RetryPolicy = DEFAULT_POLICY) -> None:
        self._url = url
        self._policy = policy

    @property
    @final
    def url(self) -> str:
        """Where the bucket is: `lockstep.storage.open_bucket` opens it again from this."""
        return self._url

    @final
    def url_of(self, key: str) -> str:
        """Returns the URL of one object."""
        return f"{self._url.rstrip('/')}/{check_key(key)}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._url!r})"

    @final
    def create(self) -> None:
        """Makes the bucket itself: a store's bucket, or a folder. Writing to a folder needs no such thing.

        Raises:
            ConflictError: it is there already.
            InvalidInputError: the URL is of a part of a store's bucket, which needs no making.
            StorageWriteError: it could not be made.
        """
        self._trying("make", f"the bucket {self._url}", self._create, raising=StorageWriteError)

    @final
    def read(self, key: str, *, start_byte: int = 0, end_byte: int | None = None) -> bytes:
        """Reads an object, or bytes ``[start_byte, end_byte)`` of it; what lies beyond its end is left out.

        Args:
            key: the object.
            start_byte: first byte, 0 or more.
            end_byte: one past the last byte; None reads to the end.

        Raises:
            MissingInputError: there is no such object.
            StorageError: it could not be read.
        """
        if start_byte < 0 or (end_byte is not None and end_byte < start_byte):
            raise InvalidInputError(
                "the byte range is not usable",
                received=(start_byte, end_byte),
                allowed="0 <= start_byte <= end_byte",
            )
        return self._reading(key, lambda: self._read(key, start_byte, end_byte))

    @final
    def write(self, key: str, data: bytes) -> None:
        """Writes an object; it appears whole or not at all, in place of an older one.

        Raises:
            StorageWriteError: it could not be written.
        """
        self._trying("write", self.url_of(key), lambda: self._write(key, data), raising=StorageWriteError)

    @final
    def upload(self, key: str, *, path: str | os.PathLike[str]) -> None:
        """Writes an object from a local file, without holding it in memory.

        Raises:
            MissingInputError: there is no such local file.
            StorageWriteError: the object could not be written.
        """
        source = Path(path)
        if not source.is_file():
            raise MissingInputError(f"cannot upload {source}: there is no such file")
        self._trying("write", self.url_of(key), lambda: self._upload(key, source), raising=StorageWriteError)

    @final
    def download(self, key: str, *, path: str | os.PathLike[str]) -> None:
        """Copies an object to a local file, which appears whole or not at all; its folder is made.

        Raises:
            MissingInputError: there is no such object.
            StorageError: it could not be read.
            StorageWriteError: the local file could not be written.
        """
        target = Path(path)
        temporary = target.with_name(temporary_name())

        def create() -> BinaryIO:
            target.parent.mkdir(parents=True, exist_ok=True)
            return create_temporary(temporary)

        # Made before it is filled: a folder that may not be written is no fault of the bucket's. And held until it has
        # its name: nobody takes it for what a killed download left.
        with self._writing_locally(target, create):
            try:
                self._reading(key, lambda: self._download(key, temporary))
                self._writing_locally(target, lambda: os.replace(temporary, target))
            finally:
                temporary.unlink(missing_ok=True)

    @final
    def list(self, prefix: str = "", *, follows_links: bool = True) -> builtins.list[StoredObject]:
        """Lists the objects whose keys start with a prefix, at every depth, sorted by key.

        Args:
            prefix: the keys' beginning, as in object stores: "a/b" finds "a/b", "a/bc" and "a/b/c". A trailing "/"
                keeps to one folder.
            follows_links: whether what a link in a folder of this machine leads to is found. Where not, the link itself
                is, as an object of no bytes: for whoever deletes what others may have made.

        Raises:
            StorageError: the bucket could not be listed. A bucket without any object lists as empty.
        """
        check_prefix(prefix)
        found = self._trying("list", f"{self._url}/{prefix}", lambda: self._list(prefix, follows_links=follows_links))
        return sorted((item for item in found if _shows(item.key)), key=lambda item: item.key)

    @final
    def folder_size_bytes(self, folder: str) -> int:
        """Adds up the sizes of all objects in a folder, at every depth; 0 where there is none.

        What lies elsewhere, where a link in a folder of this machine leads to, is not in it.

        Args:
            folder: the beginning of their keys, without the "/" behind it.

        Raises:
            StorageError: the bucket could not be listed.
        """
        check_key(folder)
        return self._trying("list", self.url_of(folder), lambda: self._folder_size_bytes(folder))

    @final
    def exists(self, key: str) -> bool:
        """Whether there is such an object.

        Raises:
            StorageError: the bucket could not be asked.
        """
        try:
            self.size_bytes(key)
        except MissingInputError:
            return False
        return True

    @final
    def size_bytes(self, key: str) -> int:
        """Returns the length of an object.

        Raises:
            MissingInputError: there is no such object.
            StorageError: the bucket could not be asked.
        """
        return self._reading(key, lambda: self._size_bytes(key))

    @final
    def open(self, key: str) -> BinaryIO:
        """Opens an object to read: a seekable binary file, which the caller closes, for one thread at a time.

        Raises:
            MissingInputError: there is no such object.
            StorageError: it could not be opened.
        """
        return self._reading(key, lambda: self._open(key))

    @final
    def delete(self, key: str) -> None:
        """Deletes an object; deleting one that is not there is no error.

        Raises:
            StorageWriteError: it could not be deleted.
        """
        self._trying("delete", self.url_of(key), lambda: self._delete(key), raising=StorageWriteError)

    @final
    def move(self, key: str, *, to: str) -> None:
        """Gives an object another key, in place of an object that has that one.

        Readers of the new key see what was there before, or the whole object that was moved; at no moment is the object
        under neither key. In a folder, and in memory, it is one step. In a cloud's bucket the store copies it, and then
        the older one is deleted: for a while it is under both keys, and stays so where the caller dies in between.
        Moving it again is then as good as the first time.

        Args:
            key: the object.
            to: its new key; where it is the same, nothing is done.

        Raises:
            MissingInputError: there is no such object.
            StorageWriteError: it could not be moved.
        """
        check_key(to)
        if key == to:
            self.size_bytes(key)
            return
        is_copy = self._trying(
            "move", f"{self.url_of(key)} to {to}", lambda: self._move_or_miss(key, to), raising=StorageWriteError
        )
        if is_copy:
            # By itself: were both tried again together, a delete whose answer was lost would make it look missing.
            self.delete(key)

    def _move_or_miss(self, key: str, to: str) -> bool:
        try:
            return self._move(key, to)
        except Exception as error:
            if find_fault(error) is Fault.MISSING and not self.exists(key):
                raise MissingInputError(f"there is no object {self.url_of(key)}") from None
            raise

    @final
    def delete_prefix(self, prefix: str) -> None:
        """Deletes every object that `list` finds under the prefix; "" deletes all of them, and no link's target.

        Raises:
            StorageWriteError: one could not be deleted.
        """
        for item in self.list(prefix, follows_links=False):
            self.delete(item.key)

    @final
    def check_writable(self) -> None:
        """Writes and deletes a small hidden object, to learn now rather than later that writing does not work.

        Raises:
            StorageWriteError: with the URL and the reason.
        """
        probe = temporary_name()

        def write_and_delete() -> None:
            self._write(probe, b"")
            self._delete(probe)

        self._trying("write to", f"the bucket {self._url}", write_and_delete, raising=StorageWriteError)

    def _reading(self, key: str, read: Callable[[], Result]) -> Result:
        url = self.url_of(key)

        def read_or_miss() -> Result:
            try:
                return read()
            except LockstepError:
                raise
            except Exception as error:
                if find_fault(error) is Fault.MISSING:
                    raise MissingInputError(f"there is no object {url}") from None
                raise

        return self._trying("read", url, read_or_miss)

    def _writing_locally(self, target: Path, write: Callable[[], Result]) -> Result:
        try:
            return write()
        except OSError as error:
            raise StorageWriteError(f"cannot write {target}: {describe_fault(error)}") from error

    def _trying(
        self, verb: str, what: str, work: Callable[[], Result], *, raising: type[StorageError] = StorageError
    ) -> Result:
        """Does something with the store until it succeeds, fails for good, or the time is up.

        Args:
            verb: what is done.
            what: to what it is done, with its URL.
            work: does it; twice is as good as once.
            raising: the error where it fails.
        """
        attempts = Attempts(self._policy)
        while True:
            # Clients of clouds raise classes of their own (network, credentials, HTTP): whatever it is, the reader
            # wants to know which URL and why.
            try:
                return work()
            except LockstepError:
                raise
            except Exception as error:
                fault = find_fault(error)
                if fault is Fault.TRANSIENT:
                    if attempts.num_failures == _NUM_SILENT_FAILURES:  # it does not wait in silence
                        logger.warning("cannot %s %s for now: %s; it is tried again", verb, what, describe_fault(error))
                    if attempts.wait_for_next():
                        continue
                raise self._failure(verb, what, error, fault, attempts, raising) from error

    def _failure(
        self, verb: str, what: str, error: Exception, fault: Fault, attempts: Attempts, raising: type[StorageError]
    ) -> StorageError:
        reason = describe_fault(error)
        if fault is Fault.REFUSED:
            return StoragePermissionError(f"no permission to {verb} {what}: {reason}", action=self.permission_advice)
        if fault is Fault.NO_CREDENTIALS:
            return StoragePermissionError(
                f"cannot {verb} {what}: credentials are missing or not valid: {reason}", action=self.credentials_advice
            )
        unresolved = describe_unresolved(error)
        advice = None if unresolved is None else self.host_advice
        said = unresolved or reason
        if fault is Fault.TRANSIENT:
            return raising(f"cannot {verb} {what}: given up after {attempts}, at last: {said}", action=advice)
        return raising(f"cannot {verb} {what}: {said}", action=advice)

    @abstractmethod
    def _create(self) -> None:
        """Makes the bucket; raises what `create` says where there is one, or where none is to be made."""

    @abstractmethod
    def _read(self, key: str, start_byte: int, end_byte: int | None) -> bytes:
        """Reads bytes ``[start_byte, end_byte)``; ``FileNotFoundError`` where there is no such object."""

    @abstractmethod
    def _write(self, key: str, data: bytes) -> None:
        """Writes an object so that it appears whole."""

    @abstractmethod
    def _upload(self, key: str, source: Path) -> None:
        """Writes an object from a file so that it appears whole."""

    @abstractmethod
    def _download(self, key: str, target: Path) -> None:
        """Copies an object into a file that nobody else looks at."""

    @abstractmethod
    def _list(self, prefix: str, *, follows_links: bool) -> builtins.list[StoredObject]:
        """Finds objects by the beginning of their keys, in any order; none where the bucket is not there.

        What has no links need not know whether to follow them.
        """

    def _folder_size_bytes(self, folder: str) -> int:
        """Adds up the sizes of a folder's objects; 0 where there is none."""
        return sum(item.size_bytes for item in self._list(f"{folder}/", follows_links=True))

    @abstractmethod
    def _size_bytes(self, key: str) -> int:
        """Returns the length; ``FileNotFoundError`` where there is no such object."""

    @abstractmethod
    def _open(self, key: str) -> BinaryIO:
        """Opens to read; ``FileNotFoundError`` where there is no such object."""

    @abstractmethod
    def _move(self, key: str, to: str) -> bool:
        """Renames an object, and returns False; or copies it whole, and returns True: the older is still to delete.

        ``FileNotFoundError`` where there is no such object.
        """

    @abstractmethod
    def _delete(self, key: str) -> None:
        """Deletes an object if it is there."""


def is_there_error(url: str) -> ConflictError:
    """Returns the error of a bucket that is to be made and is there."""
    return ConflictError(f"the bucket {url} is there already")


def check_key(key: str) -> str:
    """Returns a key as it is.

    Raises:
        InvalidInputError: it is not one.
    """
    names = key.split("/")
    if any(name in ("", ".", "..") or name.startswith(TEMPORARY_PREFIX) for name in names) or "\0" in key:
        raise InvalidInputError(
            "the key of an object is not usable",
            received=key,
            allowed=f'names joined by "/", none empty, ".", ".." or beginning with {TEMPORARY_PREFIX!r}',
        )
    return key


def check_prefix(prefix: str) -> str:
    """Returns the beginning of a key as it is: "" or what `check_key` would allow, with or without a trailing "/".

    Raises:
        InvalidInputError: no key can begin so.
    """
    if prefix:
        check_key(prefix.removesuffix("/"))
    return prefix


def _shows(key: str) -> bool:
    return not key.rsplit("/", 1)[-1].startswith(TEMPORARY_PREFIX)
