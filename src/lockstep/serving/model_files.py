"""Finds the file of a version's model, and downloads it for the version."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import Final

from lockstep.errors import LockstepError, ModelError
from lockstep.storage import join_url, open_bucket, split_url

SUFFIX: Final = ".keras"


def find_model(url: str) -> str:
    """Returns the URL of a ``.keras`` file, given the file's own URL or that of a folder with one such file.

    Raises:
        ModelError: the folder cannot be read, or contains no such file or several.
    """
    if url.endswith(SUFFIX):
        return url
    try:
        keys = [item.key for item in open_bucket(url).list() if item.key.endswith(SUFFIX)]
    except LockstepError as error:
        raise ModelError(f"cannot load the model {url}: {error}") from None
    if len(keys) != 1:
        raise ModelError(
            f"cannot load the model {url}",
            received=f"a folder with {', '.join(keys[:5])}" if keys else f"no folder with a {SUFFIX} file",
            allowed=f"a {SUFFIX} file, or a folder with one such file",
        )
    return join_url(url, keys[0])


def fetch_for_another(url: str, *, path: Path, bucket: str) -> None:
    """Downloads an object to a file for another user, who must not gain access to other projects' files in this way.

    Objects in the service's own bucket are read as root, and a job's program may have put a symbolic link there, even
    during this call. So the file that was really opened must be in the same folder of the bucket as the URL.

    Args:
        url: the URL of the object.
        path: the path of the file to write.
        bucket: the URL of the service's default bucket.

    Raises:
        MissingInputError: there is no such object.
        StorageError: the object could not be read.
        ModelError: a link leads to another folder, or the object is not a regular file.
    """
    top, place = Path(os.path.realpath(bucket)), Path(os.path.abspath(url.removeprefix("file://")))
    shared = next((each for each in (Path(os.path.abspath(bucket)), top) if place.is_relative_to(each)), None)
    if not bucket.startswith("/") or shared is None:
        bucket_url, key = split_url(url)
        open_bucket(bucket_url).download(key, path=path)
        return
    own = top.joinpath(*place.relative_to(shared).parts[:1])  # the folder of the project, or of staged code
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_NONBLOCK)  # do not block on a pipe
    except OSError as error:
        raise ModelError(f"cannot read {url}: {error.strerror}") from None
    with open(descriptor, "rb") as source:
        opened = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if not opened.is_relative_to(own) or not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ModelError(f"cannot read {url}: a link leads outside its folder, or it is not a regular file")
        with path.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
