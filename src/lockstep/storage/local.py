"""A bucket in a local folder, or in a folder of a mounted file system."""

from __future__ import annotations

import builtins
import errno
import os
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, ClassVar, Final, TypeVar, final

from lockstep.storage.base import AbstractBucket, StoredObject, bucket_exists_error
from lockstep.storage.retrying import DEFAULT_POLICY, RetryPolicy
from lockstep.storage.temporaries import create_temporary, temporary_name

_NUM_ATTEMPTS: Final = 10

Result = TypeVar("Result")


@final
class LocalBucket(AbstractBucket):
    """A bucket in a folder. An object is written under a hidden name, flushed to the disk and renamed.

    Uses system calls without fsspec, because the import of fsspec takes longer than the work of most commands on a
    bucket.

    Args:
        url: the folder's path, or ``file:///path``. The folder need not exist. The bucket's `url` is the absolute path.
        policy: the policy for retries if a mounted file system does not respond.
    """

    permission_advice: ClassVar[str] = (
        "run as a user with this permission, or change the mode of the file or of its folder"
    )

    def __init__(self, url: str, *, policy: RetryPolicy = DEFAULT_POLICY) -> None:
        path = Path(url.removeprefix("file://")).expanduser()
        self._folder = Path(os.path.abspath(path))
        super().__init__(str(self._folder), policy=policy)

    def _create(self) -> None:
        try:
            self._folder.mkdir(parents=True)
        except FileExistsError:
            raise bucket_exists_error(self.url) from None

    def _read(self, key: str, start_byte: int, end_byte: int | None) -> bytes:
        with open(self._folder / key, "rb") as file:
            file.seek(start_byte)
            return file.read() if end_byte is None else file.read(end_byte - start_byte)

    def _write(self, key: str, data: bytes) -> None:
        self._write_atomically(key, lambda file: file.write(data))

    def _upload(self, key: str, source: Path) -> None:
        def copy(file: BinaryIO) -> None:
            with open(source, "rb") as opened:
                shutil.copyfileobj(opened, file, 1 << 20)

        self._write_atomically(key, copy)

    def _write_atomically(self, key: str, fill: Callable[[BinaryIO], object]) -> None:
        target = self._folder / key
        temporary = target.with_name(temporary_name())
        try:
            with _with_parent_folder(temporary, lambda: create_temporary(temporary)) as file:
                fill(file)
                file.flush()
                os.fsync(file.fileno())
                os.replace(temporary, target)  # while the file is locked: see lockstep.storage.temporaries
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise

    def _download(self, key: str, target: Path) -> None:
        shutil.copyfile(self._folder / key, target)

    def _list(self, prefix: str, *, follows_links: bool) -> builtins.list[StoredObject]:
        folder, _, beginning = prefix.rpartition("/")
        found: builtins.list[StoredObject] = []
        # Only the names of the first level are compared with the rest of the prefix: everything below a match belongs.
        waiting: builtins.list[tuple[str, str, frozenset[tuple[int, int]]]] = [(folder, beginning, frozenset())]
        while waiting:
            folder, beginning, above = waiting.pop()
            try:
                status = os.stat(self._folder / folder)
                if (status.st_dev, status.st_ino) in above:
                    continue  # a link to a folder that contains it
                above |= {(status.st_dev, status.st_ino)}
                entries = os.scandir(self._folder / folder)
            except (FileNotFoundError, NotADirectoryError):
                continue
            with entries:
                for entry in entries:
                    if not entry.name.startswith(beginning):
                        continue
                    key = f"{folder}/{entry.name}" if folder else entry.name
                    try:
                        if entry.is_symlink() and not follows_links:
                            found.append(_link(key, entry.stat(follow_symlinks=False)))
                            continue
                        if entry.is_dir():
                            waiting.append((key, "", above))
                            continue
                        status = entry.stat()
                    except FileNotFoundError:
                        continue  # deleted, or renamed into place, since the scan
                    except OSError as error:
                        if error.errno == errno.ELOOP and entry.is_symlink():
                            continue  # a link to itself is a broken link
                        raise
                    if stat.S_ISREG(status.st_mode):  # reading a pipe or a device could block forever
                        found.append(StoredObject(key=key, size_bytes=status.st_size, modified_time_s=status.st_mtime))
        return found

    def _folder_size_bytes(self, folder: str) -> int:
        top = self._folder / folder
        if top.is_symlink():
            return 0
        size_bytes = 0
        for place, _, names in os.walk(top, onerror=_raise_unless_missing):  # does not follow links
            for name in names:
                with suppress(FileNotFoundError):  # deleted, or renamed into place, since the scan
                    status = os.lstat(os.path.join(place, name))
                    size_bytes += status.st_size if stat.S_ISREG(status.st_mode) else 0
        return size_bytes

    def _size_bytes(self, key: str) -> int:
        path = self._folder / key
        if path.is_dir():
            raise IsADirectoryError(path)
        return path.stat().st_size

    def _open(self, key: str) -> BinaryIO:
        return open(self._folder / key, "rb")

    def _move(self, key: str, to: str) -> bool:
        source, target = self._folder / key, self._folder / to
        if source.is_dir():
            raise IsADirectoryError(source)
        os.lstat(source)  # a missing object raises before the target's folder is created
        try:
            _with_parent_folder(target, lambda: os.replace(source, target))
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            self._upload(to, source)  # a folder of the bucket may be on another disk
            return True
        self._delete_folders(source)
        return False

    def _delete(self, key: str) -> None:
        path = self._folder / key
        with suppress(FileNotFoundError, NotADirectoryError):
            if path.is_dir() and not path.is_symlink():
                return
            path.unlink()
        self._delete_folders(path)

    def _delete_folders(self, path: Path) -> None:
        # Buckets have no empty folders: delete the folders that became empty, up to the bucket's own folder.
        for parent in path.parents:
            if parent == self._folder:
                break
            try:
                parent.rmdir()
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError:
                break


def _link(key: str, status: os.stat_result) -> StoredObject:
    return StoredObject(key=key, size_bytes=0, modified_time_s=status.st_mtime)


def _with_parent_folder(path: Path, make: Callable[[], Result]) -> Result:
    """Creates a file after its folder, and retries if a concurrent delete removes the empty folder in between."""
    for _ in range(_NUM_ATTEMPTS - 1):
        # `mkdir` raises FileExistsError if the folder disappears between its own attempt and its check of the path.
        with suppress(FileNotFoundError, FileExistsError):
            path.parent.mkdir(parents=True, exist_ok=True)
            return make()
    path.parent.mkdir(parents=True, exist_ok=True)
    return make()


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error
