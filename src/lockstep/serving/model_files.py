"""Where a version's model lies, and how its file, or a package, comes to the prediction server."""

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
    """Returns the URL of the one ``.keras`` file that a URL names: the file itself, or the one in a folder.

    Raises:
        ModelError: the folder cannot be read, or holds none or several.
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


def fetch(url: str, *, path: Path) -> None:
    """Copies an object to a file.

    Raises:
        MissingInputError: there is no such object.
        StorageError: it could not be read.
    """
    bucket_url, key = split_url(url)
    open_bucket(bucket_url).download(key, path=path)


def fetch_for_another(url: str, *, path: Path, bucket: str) -> None:
    """Copies an object to a file that another user will own, who may read no more by it than its project has.

    What is in the service's own bucket is read as root, and a job's program may have put a link there, also while this
    goes on: what was really opened has to lie in the same folder of the bucket as the URL.

    Args:
        url: the object.
        path: the file.
        bucket: URL of the service's default bucket.

    Raises:
        MissingInputError: there is no such object.
        StorageError: it could not be read.
        ModelError: a link led elsewhere, or to what is no file.
    """
    top, place = Path(os.path.realpath(bucket)), Path(os.path.abspath(url.removeprefix("file://")))
    shared = next((each for each in (Path(os.path.abspath(bucket)), top) if place.is_relative_to(each)), None)
    if not bucket.startswith("/") or shared is None:
        fetch(url, path=path)
        return
    own = top.joinpath(*place.relative_to(shared).parts[:1])  # the project's folder, or that of staged code
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_NONBLOCK)  # a pipe must not keep it waiting
    except OSError as error:
        raise ModelError(f"cannot read {url}: {error.strerror}") from None
    with open(descriptor, "rb") as source:
        opened = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if not opened.is_relative_to(own) or not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ModelError(f"cannot read {url}: a link in it leads elsewhere, or it is no file")
        with path.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
