"""Finds the files of a version, and downloads them for the version."""

from __future__ import annotations

import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, final

from lockstep.errors import LockstepError, ModelError, counted
from lockstep.storage import join_url, may_succeed_later, open_bucket, split_url

SUFFIX: Final = ".keras"
EXPORTED_SUFFIX: Final = ".stablehlo"
SIGNATURE_SUFFIX: Final = ".json"
"""What the name of the file with the names of an exported program's inputs adds to that of the program."""
SUFFIXES: Final = (SUFFIX, EXPORTED_SUFFIX)
MODEL_NAME: Final = "model"
"""The name of a model's file in the working folder of a server, without the suffix."""
MODEL_FOLDER: Final = "deployed-model"
"""The folder for the files of a custom prediction routine there. No module can have this name."""

MAX_FILES: Final = 1000
MAX_BYTES: Final = 10 * 2**30
"""The maximum size of all files of a version together, in bytes."""


@final
@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """A file that belongs to a model.

    Attributes:
        url: the URL of the file.
        name: the path of its copy, relative to the working folder of a server.
    """

    url: str
    name: str


def find_model(url: str) -> tuple[ModelFile, ...]:
    """Returns the files of a model: a ``.keras`` file, or a program of ``jax.export`` with the file beside it.

    Args:
        url: the URL of the model's file, or of a folder with one such file.

    Returns:
        The model's file, which is the first one, and the file with the names of its inputs if there is one.

    Raises:
        ModelError: the folder cannot be read, or contains no such file or several.
        StorageError: the bucket does not respond now.
    """
    try:
        found = url if url.endswith(SUFFIXES) else _only_model(url)
        if found.endswith(SUFFIX):
            return (ModelFile(url=found, name=f"{MODEL_NAME}{SUFFIX}"),)
        program = ModelFile(url=found, name=f"{MODEL_NAME}{EXPORTED_SUFFIX}")
        beside = ModelFile(url=f"{found}{SIGNATURE_SUFFIX}", name=f"{program.name}{SIGNATURE_SUFFIX}")
        bucket_url, key = split_url(beside.url)
        return (program, beside) if open_bucket(bucket_url).exists(key) else (program,)
    except LockstepError as error:
        if isinstance(error, ModelError) or may_succeed_later(error):
            raise
        raise ModelError(f"cannot load the model {url}: {error}") from None


def _only_model(url: str) -> str:
    keys = [item.key for item in open_bucket(url).list() if item.key.endswith(SUFFIXES)]
    if len(keys) != 1:
        kinds = f"{SUFFIX} or {EXPORTED_SUFFIX} file"
        raise ModelError(
            f"cannot load the model {url}",
            received=f"a folder with {', '.join(keys[:5])}" if keys else f"no folder with a {kinds}",
            allowed=f"a {kinds}, or a folder with one such file",
        )
    return join_url(url, keys[0])


def find_files(url: str) -> tuple[ModelFile, ...]:
    """Returns the files of a folder, for a custom prediction routine; or a single file.

    Args:
        url: the URL of the folder, or of the file.

    Raises:
        ModelError: it cannot be read, has no files or too many, or a file has a name that no folder can have.
        StorageError: the bucket does not respond now.
    """
    try:
        found = open_bucket(url).list(follows_links=False)
        if not found:
            bucket_url, key = split_url(url)
            if open_bucket(bucket_url).exists(key):
                return (ModelFile(url=url, name=f"{MODEL_FOLDER}/{url.rpartition('/')[2]}"),)
    except LockstepError as error:
        if may_succeed_later(error):
            raise
        raise ModelError(f"cannot read {url}: {error}") from None
    size_bytes = sum(item.size_bytes for item in found)
    if not 0 < len(found) <= MAX_FILES or size_bytes > MAX_BYTES:
        raise ModelError(
            f"cannot copy {url}",
            received=f"{counted(len(found), 'file')} with {size_bytes} bytes",
            allowed=f"1 to {MAX_FILES} files with {MAX_BYTES} bytes together",
        )
    for item in found:
        if any(part in ("", ".", "..") for part in item.key.split("/")) or "\0" in item.key:
            raise ModelError(f"cannot copy {url}: no file can have the name of an object in it", received=item.key)
    return tuple(ModelFile(url=join_url(url, item.key), name=f"{MODEL_FOLDER}/{item.key}") for item in found)


def fetch_for_another(url: str, *, path: Path, bucket: str) -> None:
    """Downloads an object to a file for another user; see `open_for_another` for what that must not give access to.

    Args:
        url: the URL of the object.
        path: the path of the file to write.
        bucket: the URL of the service's default bucket.

    Raises:
        MissingInputError: there is no such object.
        StorageError: the object could not be read.
        ModelError: a link leads to another folder, or the object is not a regular file.
    """
    if _own_place(url, bucket=bucket) is None:
        bucket_url, key = split_url(url)
        open_bucket(bucket_url).download(key, path=path)
        return
    with open_for_another(url, bucket=bucket) as source, path.open("wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)


def open_for_another(url: str, *, bucket: str) -> BinaryIO:
    """Opens an object for another user, who must not gain access to other projects' files in this way.

    Objects in the service's own bucket are read as root, and a job's program may have put a symbolic link there, even
    during this call. So the file that was really opened must be in the same folder of the bucket as the URL.

    Args:
        url: the URL of the object.
        bucket: the URL of the service's default bucket.

    Returns:
        The object, opened for reading. The caller closes it.

    Raises:
        MissingInputError: there is no such object.
        StorageError: the object could not be read.
        ModelError: a link leads to another folder, or the object is not a regular file.
    """
    places = _own_place(url, bucket=bucket)
    if places is None:
        bucket_url, key = split_url(url)
        return open_bucket(bucket_url).open(key)
    place, own = places
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_NONBLOCK)  # do not block on a pipe
    except OSError as error:
        raise ModelError(f"cannot read {url}: {error.strerror}") from None
    opened = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
    if not opened.is_relative_to(own) or not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ModelError(f"cannot read {url}: a link leads outside its folder, or it is not a regular file")
    return os.fdopen(descriptor, "rb")


def _own_place(url: str, *, bucket: str) -> tuple[Path, Path] | None:
    """Returns the path of an object in the service's own bucket, and that of the top folder that it is in there.

    None if the object is elsewhere, or the bucket is not a folder.
    """
    top, place = Path(os.path.realpath(bucket)), Path(os.path.abspath(url.removeprefix("file://")))
    shared = next((each for each in (Path(os.path.abspath(bucket)), top) if place.is_relative_to(each)), None)
    if not bucket.startswith("/") or shared is None:
        return None
    return place, top.joinpath(*place.relative_to(shared).parts[:1])  # the folder of the project, or of staged code
