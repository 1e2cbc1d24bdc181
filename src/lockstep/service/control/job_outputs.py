"""The files in the folders of a job's outputs, listed and opened without following links.

The job's programs may write into these folders, and they may make links there while the service reads. The service
often has more rights than they have. So in a local folder, each folder on the way is opened from the one above it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, final

from lockstep.errors import InvalidInputError, MissingInputError, NotFoundError, StorageError
from lockstep.service.store import JobRecord
from lockstep.storage import QUICK_POLICY, AbstractBucket, StoredObject, local_path, open_bucket
from lockstep.storage.base import check_key

MAX_FILES: Final = 200_000
"""The maximum number of files of an output that are listed."""
MAX_DEPTH: Final = 100
"""The maximum number of folders above a file. Files below more of them are not listed."""
LOGS: Final = "logs"
"""The output with the segments of logs."""
_NOT_A_FOLDER: Final = (errno.ENOTDIR, errno.ELOOP)


@final
@dataclass(frozen=True, kw_only=True)
class Artifact:
    """A file that a job left.

    Attributes:
        output: the name of the output, such as ``model``.
        key: the path of the file in the output's folder.
        size_bytes: the size of the file.
        modified_time_s: the time of the last change, in seconds since 1970 UTC; 0 if the bucket does not tell it.
    """

    output: str
    key: str
    size_bytes: int
    modified_time_s: float

    @property
    def path(self) -> str:
        """The path of the file in the job: the name of the output, and the path in its folder."""
        return f"{self.output}/{self.key}"


class AbstractOutputFolder(ABC):
    """The folder of an output. All methods block, and may be called from any thread."""

    @abstractmethod
    def files(self) -> list[StoredObject]:
        """Returns the files at every depth, sorted by key; none if the folder does not exist.

        Raises:
            StorageError: If the folder cannot be listed, or has more than `MAX_FILES`.
        """

    @abstractmethod
    def open(self, key: str) -> BinaryIO:
        """Opens a file for reading, as a seekable binary file. The caller closes it.

        Raises:
            InvalidInputError: If the key leads out of the folder, or no file can have it.
            MissingInputError: If there is no such file.
            StorageError: If the file cannot be opened.
        """


@final
class _BucketFolder(AbstractOutputFolder):
    """A folder of a bucket that has no links."""

    def __init__(self, bucket: AbstractBucket) -> None:
        self._bucket = bucket

    def files(self) -> list[StoredObject]:
        """Returns the objects."""
        found = [item for item in self._bucket.list() if _is_key(item.key)]
        _check_number(len(found), url=self._bucket.url)
        return found

    def open(self, key: str) -> BinaryIO:
        """Opens an object."""
        return self._bucket.open(check_key(key))


@final
class _LocalFolder(AbstractOutputFolder):
    """A folder on the service's machine.

    Args:
        path: the path of the folder.
        trusted: a folder above it that programs cannot replace by a link.
    """

    def __init__(self, path: Path, *, trusted: Path) -> None:
        self._path = path
        self._trusted = trusted
        self._names = path.relative_to(trusted).parts

    def files(self) -> list[StoredObject]:
        """Returns the files, without links."""
        found: list[StoredObject] = []
        waiting: list[tuple[str, ...]] = [()]
        while waiting:
            names = waiting.pop()
            try:
                with self._opened_folder(names) as descriptor, os.scandir(descriptor) as entries:
                    for entry in entries:
                        inner = (*names, entry.name)
                        if entry.is_dir(follow_symlinks=False):
                            if _is_key(entry.name) and len(inner) < MAX_DEPTH:
                                waiting.append(inner)
                        elif (item := _stored(entry, key="/".join(inner))) is not None:
                            found.append(item)
                            _check_number(len(found), url=str(self._path))
            except FileNotFoundError:
                continue
            except OSError as error:
                if names and error.errno in _NOT_A_FOLDER:
                    continue  # replaced by a link since its folder was listed
                raise StorageError(f"cannot list {self._path}: {_reason(error)}") from error
        return sorted(found, key=lambda item: item.key)

    def open(self, key: str) -> BinaryIO:
        """Opens a file, which is no link."""
        *folders, name = check_key(key).split("/")
        missing = MissingInputError(f"there is no file {self._path / key}")
        try:
            with self._opened_folder(folders) as above:
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # do not block on a pipe
                descriptor = os.open(name, flags, dir_fd=above)
        except FileNotFoundError:
            raise missing from None
        except OSError as error:
            if error.errno in (*_NOT_A_FOLDER, errno.ENAMETOOLONG):
                raise missing from None
            raise StorageError(f"cannot read {self._path / key}: {_reason(error)}") from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise missing
        return os.fdopen(descriptor, "rb")

    @contextlib.contextmanager
    def _opened_folder(self, names: Sequence[str]) -> Iterator[int]:
        """Yields the descriptor of a folder below this one."""
        descriptor = os.open(self._trusted, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for name in (*self._names, *names):
                inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = inner
            yield descriptor
        finally:
            os.close(descriptor)


def open_output(job: JobRecord, output: str, *, bucket: str) -> AbstractOutputFolder:
    """Returns the folder of a job's output. Nothing is read yet.

    Args:
        job: the job.
        output: the name of the output.
        bucket: the URL of the service's default bucket.

    Raises:
        NotFoundError: If the job has no such output.
    """
    url = job.outputs.get(output)
    if url is None:
        raise NotFoundError(f"job {job.job_id} has no output {output!r}", allowed=", ".join(job.outputs))
    place = local_path(url)
    if place is None:
        return _BucketFolder(open_bucket(url, policy=QUICK_POLICY))
    own, path = local_path(bucket), Path(place)
    # Elsewhere, the folder that the job named may have been made by its programs, but not the one above it.
    is_own = own is not None and path.is_relative_to(own)
    return _LocalFolder(path, trusted=Path(own) if own is not None and is_own else path.parent.parent)


def list_artifacts(
    job: JobRecord, *, bucket: str, size: int, after: tuple[str, str] | None
) -> tuple[list[Artifact], tuple[str, str] | None]:
    """Returns a page of the files that a job left: output by output, and sorted by path within each.

    The segments of logs, of which there may be very many, are on pages of their own: they are not listed before that.

    Args:
        job: the job.
        bucket: the URL of the service's default bucket.
        size: the maximum number of files.
        after: where the page begins, as the previous page says; None for the first page.

    Returns:
        The files, and where the next page begins: after the key of an output. None if this is the last page.

    Raises:
        StorageError: If the bucket cannot be listed.
    """
    outputs = list(job.outputs)
    first = 0
    if after is not None:
        first = outputs.index(after[0]) if after[0] in outputs else len(outputs)
    found: list[Artifact] = []
    for output in outputs[first:]:
        if output == LOGS and (after is None or after[0] != LOGS):
            return found, (LOGS, "")
        behind = after[1] if after is not None and output == after[0] else ""
        for item in open_output(job, output, bucket=bucket).files():
            if item.key <= behind:
                continue
            if len(found) == size:
                return found, (found[-1].output, found[-1].key)
            found.append(
                Artifact(output=output, key=item.key, size_bytes=item.size_bytes, modified_time_s=item.modified_time_s)
            )
    return found, None


def open_artifact(job: JobRecord, path: str, *, bucket: str) -> tuple[BinaryIO, int]:
    """Opens a file that a job left. The caller closes it.

    Args:
        job: the job.
        path: the path of the file in the job: the name of the output, and the path in its folder.
        bucket: the URL of the service's default bucket.

    Returns:
        The file, positioned at its beginning, and its size in bytes.

    Raises:
        InvalidInputError: If the path leads out of the output's folder.
        NotFoundError: If there is no such file.
        StorageError: If the bucket cannot be read.
    """
    output, _, key = path.partition("/")
    if output not in job.outputs or not key:
        raise NotFoundError(
            f"job {job.job_id} has no artifact {path!r}", allowed=f"OUTPUT/NAME with one of {', '.join(job.outputs)}"
        )
    if not _is_key(key):
        raise InvalidInputError(
            "not the path of an artifact", received=path, allowed='names joined by "/", none empty, "." or ".."'
        )
    try:
        file = open_output(job, output, bucket=bucket).open(key)
    except MissingInputError:
        raise NotFoundError(f"job {job.job_id} has no artifact {path!r}") from None
    size_bytes = file.seek(0, os.SEEK_END)
    file.seek(0)
    return file, size_bytes


def _is_key(text: str) -> bool:
    try:
        check_key(text).encode()  # a name in a folder may be no text
    except (InvalidInputError, UnicodeEncodeError):
        return False
    return True


def _stored(entry: os.DirEntry[str], *, key: str) -> StoredObject | None:
    """Returns a regular file; None for anything else, and for files that are being written."""
    if not _is_key(entry.name):
        return None
    try:
        status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return StoredObject(key=key, size_bytes=status.st_size, modified_time_s=status.st_mtime)


def _check_number(num_files: int, *, url: str) -> None:
    if num_files > MAX_FILES:
        raise StorageError(f"cannot list {url}: too many files", allowed=f"{MAX_FILES:,}", action="read the bucket")


def _reason(error: OSError) -> str:
    if error.errno in _NOT_A_FOLDER:
        return "a part of the path is a link, or no folder; links are not followed"
    return error.strerror or type(error).__name__
