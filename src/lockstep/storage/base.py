"""The interface of all buckets: objects of bytes, stored under keys and addressed by URL."""

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
        key: the object's name within the bucket.
        size_bytes: the object's length in bytes.
        modified_time_s: the time of the last write, in seconds since 1970 UTC.
    """

    key: str
    size_bytes: int
    modified_time_s: float


class AbstractBucket(ABC):
    """A flat namespace of objects under a URL. A "/" in a key is only a convention: a bucket has no folders.

    An object appears whole or not at all, and the last writer wins. Every method blocks, and may be called from any
    thread. A key is one or more names joined by "/", without a leading or trailing "/", an empty name, "." or "..".
    If the bucket is a folder of a file system, one key cannot be a folder of another ("a" and "a/b").

    A call is retried under the retry policy if the store throttles, fails or drops the connection. It is not retried
    if something is missing, refused or invalid. `lockstep.storage.faults` tells these cases apart. Every method may
    raise, in addition to the errors that it documents:

    - `StorageError`, or `StorageWriteError` for writes, with the URL, the number of attempts and the reason;
    - `StoragePermissionError`, if credentials are missing, not accepted or not sufficient.

    Args:
        url: the bucket's URL, without a trailing "/".
        policy: the policy for retries and timeouts.
    """

    permission_advice: ClassVar[str] = "use an account with this permission, or ask the bucket's owner"
    """The advice in the error if the store denies permission."""
    credentials_advice: ClassVar[str] = "configure credentials that the store accepts"
    """The advice in the error if the store does not accept the credentials, or if there are none."""
    host_advice: ClassVar[str] = "check the network and the name"
    """The advice in the error if the store's host name cannot be resolved."""

    def __init__(self, url: str, *, policy: RetryPolicy = DEFAULT_POLICY) -> None:
        self._url = url
        self._policy = policy

    @property
    @final
    def url(self) -> str:
        """The bucket's URL, from which `lockstep.storage.open_bucket` opens the same bucket again."""
        return self._url

    @final
    def url_of(self, key: str) -> str:
        """Returns the URL of one object."""
        return f"{self._url.rstrip('/')}/{check_key(key)}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._url!r})"

    @final
    def create(self) -> None:
        """Creates the bucket itself: a store's bucket, or a folder. A folder need not be created before writing to it.

        Raises:
            ConflictError: the bucket already exists.
            InvalidInputError: the URL addresses a prefix of a store's bucket, which does not have to be created.
            StorageWriteError: the bucket could not be created.
        """
        self._with_retries("make", f"the bucket {self._url}", self._create, raising=StorageWriteError)

    @final
    def read(self, key: str, *, start_byte: int = 0, end_byte: int | None = None) -> bytes:
        """Reads an object, or its bytes ``[start_byte, end_byte)`` up to the object's end.

        Args:
            key: the object's key.
            start_byte: the first byte to read, 0 or more.
            end_byte: one past the last byte to read; None reads to the end.

        Raises:
            MissingInputError: the object does not exist.
            StorageError: the object could not be read.
        """
        if start_byte < 0 or (end_byte is not None and end_byte < start_byte):
            raise InvalidInputError(
                "the byte range is not usable",
                received=(start_byte, end_byte),
                allowed="0 <= start_byte <= end_byte",
            )
        return self._with_read_errors(key, lambda: self._read(key, start_byte, end_byte))

    @final
    def write(self, key: str, data: bytes) -> None:
        """Writes an object, replacing an existing one. The object appears whole or not at all.

        Raises:
            StorageWriteError: the object could not be written.
        """
        self._with_retries("write", self.url_of(key), lambda: self._write(key, data), raising=StorageWriteError)

    @final
    def upload(self, key: str, *, path: str | os.PathLike[str]) -> None:
        """Writes an object from a local file without holding the whole file in memory.

        Raises:
            MissingInputError: the local file does not exist.
            StorageWriteError: the object could not be written.
        """
        source = Path(path)
        if not source.is_file():
            raise MissingInputError(f"cannot upload {source}: there is no such file")
        self._with_retries("write", self.url_of(key), lambda: self._upload(key, source), raising=StorageWriteError)

    @final
    def download(self, key: str, *, path: str | os.PathLike[str]) -> None:
        """Copies an object to a local file, and creates its folder. The file appears whole or not at all.

        Raises:
            MissingInputError: the object does not exist.
            StorageError: the object could not be read.
            StorageWriteError: the local file could not be written.
        """
        target = Path(path)
        temporary = target.with_name(temporary_name())

        def create() -> BinaryIO:
            target.parent.mkdir(parents=True, exist_ok=True)
            return create_temporary(temporary)

        # The temporary file is created before the download, so that a folder without write permission is not reported
        # as an error of the bucket. It stays open, and so locked, until it is renamed: no sweep deletes it.
        with self._with_local_write_errors(target, create):
            try:
                self._with_read_errors(key, lambda: self._download(key, temporary))
                self._with_local_write_errors(target, lambda: os.replace(temporary, target))
            finally:
                temporary.unlink(missing_ok=True)

    @final
    def list(self, prefix: str = "", *, follows_links: bool = True) -> builtins.list[StoredObject]:
        """Lists the objects whose keys start with a prefix, at every depth, sorted by key.

        Args:
            prefix: the beginning of the keys, as in object stores: "a/b" finds "a/b", "a/bc" and "a/b/c". A trailing
                "/" limits the listing to one folder.
            follows_links: whether symbolic links in a local folder are followed. If not, a link is listed as an object
                of 0 bytes, for callers that delete files which others may have created.

        Raises:
            StorageError: the bucket could not be listed. The listing of a bucket without objects is empty.
        """
        check_prefix(prefix)
        found = self._with_retries(
            "list", f"{self._url}/{prefix}", lambda: self._list(prefix, follows_links=follows_links)
        )
        return sorted((item for item in found if _is_visible(item.key)), key=lambda item: item.key)

    @final
    def folder_size_bytes(self, folder: str) -> int:
        """Returns the sum of the sizes of all objects in a folder, at every depth; 0 if there are none.

        The targets of symbolic links in a local folder do not count.

        Args:
            folder: the folder: the beginning of the objects' keys, without the trailing "/".

        Raises:
            StorageError: the bucket could not be listed.
        """
        check_key(folder)
        return self._with_retries("list", self.url_of(folder), lambda: self._folder_size_bytes(folder))

    @final
    def exists(self, key: str) -> bool:
        """Whether an object exists.

        Raises:
            StorageError: the request to the bucket failed.
        """
        try:
            self.size_bytes(key)
        except MissingInputError:
            return False
        return True

    @final
    def size_bytes(self, key: str) -> int:
        """Returns the length of an object in bytes.

        Raises:
            MissingInputError: the object does not exist.
            StorageError: the request to the bucket failed.
        """
        return self._with_read_errors(key, lambda: self._size_bytes(key))

    @final
    def open(self, key: str) -> BinaryIO:
        """Opens an object for reading, as a seekable binary file for one thread at a time. The caller closes the file.

        Raises:
            MissingInputError: the object does not exist.
            StorageError: the object could not be opened.
        """
        return self._with_read_errors(key, lambda: self._open(key))

    @final
    def delete(self, key: str) -> None:
        """Deletes an object. Deleting an object that does not exist is not an error.

        Raises:
            StorageWriteError: the object could not be deleted.
        """
        self._with_retries("delete", self.url_of(key), lambda: self._delete(key), raising=StorageWriteError)

    @final
    def move(self, key: str, *, to: str) -> None:
        """Gives an object another key, replacing an object that already has that key.

        Readers of the new key see the object that was there before, or the whole moved object. The object is always
        under at least one of the two keys. In a folder and in memory, a move is one atomic step. In a cloud's bucket,
        the store copies the object and then the original is deleted: the object is under both keys for a while, and
        stays so if the caller dies in between. It is safe to repeat the move in that case.

        Args:
            key: the object's key.
            to: the new key; if it equals ``key``, nothing is done.

        Raises:
            MissingInputError: the object does not exist.
            StorageWriteError: the object could not be moved.
        """
        check_key(to)
        if key == to:
            self.size_bytes(key)
            return
        is_copy = self._with_retries(
            "move", f"{self.url_of(key)} to {to}", lambda: self._move_or_miss(key, to), raising=StorageWriteError
        )
        if is_copy:
            # Retried separately from the copy: if both were retried together after a delete whose response was lost,
            # the object would seem to be missing.
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
        """Deletes every object that `list` finds under a prefix. Links are deleted, but not their targets.

        Args:
            prefix: the beginning of the objects' keys; "" deletes all objects.

        Raises:
            StorageWriteError: an object could not be deleted.
        """
        for item in self.list(prefix, follows_links=False):
            self.delete(item.key)

    @final
    def check_writable(self) -> None:
        """Writes and deletes an empty hidden object, so that a bucket without write access is found early.

        Raises:
            StorageWriteError: the write or the delete failed; the message has the URL and the reason.
        """
        probe = temporary_name()

        def write_and_delete() -> None:
            self._write(probe, b"")
            self._delete(probe)

        self._with_retries("write to", f"the bucket {self._url}", write_and_delete, raising=StorageWriteError)

    def _with_read_errors(self, key: str, read: Callable[[], Result]) -> Result:
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

        return self._with_retries("read", url, read_or_miss)

    def _with_local_write_errors(self, target: Path, write: Callable[[], Result]) -> Result:
        try:
            return write()
        except OSError as error:
            raise StorageWriteError(f"cannot write {target}: {describe_fault(error)}") from error

    def _with_retries(
        self, verb: str, what: str, work: Callable[[], Result], *, raising: type[StorageError] = StorageError
    ) -> Result:
        """Calls the store until the call succeeds, fails permanently, or reaches the retry deadline.

        Args:
            verb: the verb of error messages, such as "read".
            what: the object of the verb in error messages, with its URL.
            work: the call; it must be idempotent.
            raising: the class of the error if the call fails.
        """
        attempts = Attempts(self._policy)
        while True:
            # The clouds' clients raise exceptions of their own classes (network, credentials, HTTP). All of them become
            # a StorageError with the URL and the reason.
            try:
                return work()
            except LockstepError:
                raise
            except Exception as error:
                fault = find_fault(error)
                if fault is Fault.TRANSIENT:
                    if attempts.num_failures == _NUM_SILENT_FAILURES:  # a long wait is logged
                        logger.warning("cannot %s %s: %s; retrying", verb, what, describe_fault(error))
                    if attempts.count_failure_and_wait():
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
            return raising(f"cannot {verb} {what}: gave up after {attempts}; last error: {said}", action=advice)
        return raising(f"cannot {verb} {what}: {said}", action=advice)

    @abstractmethod
    def _create(self) -> None:
        """Creates the bucket, and raises ConflictError and InvalidInputError as `create` documents them."""

    @abstractmethod
    def _read(self, key: str, start_byte: int, end_byte: int | None) -> bytes:
        """Reads bytes ``[start_byte, end_byte)``; raises ``FileNotFoundError`` if the object does not exist."""

    @abstractmethod
    def _write(self, key: str, data: bytes) -> None:
        """Writes an object so that it appears whole."""

    @abstractmethod
    def _upload(self, key: str, source: Path) -> None:
        """Writes an object from a file so that it appears whole."""

    @abstractmethod
    def _download(self, key: str, target: Path) -> None:
        """Copies an object into a temporary file that no one else reads yet."""

    @abstractmethod
    def _list(self, prefix: str, *, follows_links: bool) -> builtins.list[StoredObject]:
        """Finds objects by the beginning of their keys, in any order; none if the bucket does not exist.

        Buckets without symbolic links ignore ``follows_links``.
        """

    def _folder_size_bytes(self, folder: str) -> int:
        """Returns the sum of the sizes of a folder's objects; 0 if there are none."""
        return sum(item.size_bytes for item in self._list(f"{folder}/", follows_links=True))

    @abstractmethod
    def _size_bytes(self, key: str) -> int:
        """Returns the object's length in bytes; raises ``FileNotFoundError`` if the object does not exist."""

    @abstractmethod
    def _open(self, key: str) -> BinaryIO:
        """Opens the object for reading; raises ``FileNotFoundError`` if the object does not exist."""

    @abstractmethod
    def _move(self, key: str, to: str) -> bool:
        """Renames an object and returns False, or copies it and returns True: the caller then deletes the original.

        Raises ``FileNotFoundError`` if the object does not exist.
        """

    @abstractmethod
    def _delete(self, key: str) -> None:
        """Deletes an object if it exists."""


def bucket_exists_error(url: str) -> ConflictError:
    """Returns the error for creating a bucket that already exists."""
    return ConflictError(f"the bucket {url} already exists")


def check_key(key: str) -> str:
    """Checks a key, and returns it unchanged.

    Raises:
        InvalidInputError: the text is not a valid key.
    """
    names = key.split("/")
    if any(name in ("", ".", "..") or name.startswith(TEMPORARY_PREFIX) for name in names) or "\0" in key:
        raise InvalidInputError(
            "invalid object key",
            received=key,
            allowed=f'names joined by "/", none empty, ".", ".." or beginning with {TEMPORARY_PREFIX!r}',
        )
    return key


def check_prefix(prefix: str) -> str:
    """Checks the beginning of a key, and returns it unchanged.

    A prefix is "" or a text that `check_key` allows, with or without a trailing "/".

    Raises:
        InvalidInputError: no key can begin with this text.
    """
    if prefix:
        check_key(prefix.removesuffix("/"))
    return prefix


def _is_visible(key: str) -> bool:
    return not key.rsplit("/", 1)[-1].startswith(TEMPORARY_PREFIX)
