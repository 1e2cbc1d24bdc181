"""Downloads the user's code, and pinned files such as a model, from the bucket to the node."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from lockstep.errors import CorruptDataError
from lockstep.jobs.running.order_parts import FileOrder
from lockstep.jobs.running.packages import Code, unpack_package
from lockstep.storage import open_bucket, read_url, split_url


def unpack(packages: Sequence[str], *, folder: Path) -> list[Code]:
    """Downloads packages and unpacks each into a folder.

    Args:
        packages: the bucket URLs of the packages.
        folder: the folder to unpack into; created if it does not exist.

    Returns:
        The unpacked packages, in the same order.

    Raises:
        MissingInputError: If a package does not exist.
        StorageError: If a package could not be read.
        InvalidInputError: If a package is neither a source archive nor a wheel, or if it is a wheel with compiled
            parts.
        CorruptDataError: If a package is damaged, or contains a path outside the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    return [unpack_package(url, data=read_url(url), folder=folder) for url in packages]


def fetch_files(files: Sequence[FileOrder], *, folder: Path) -> None:
    """Downloads pinned files into a folder, and checks that they have not changed.

    Args:
        files: the files.
        folder: the folder, which exists.

    Raises:
        MissingInputError: If a file does not exist.
        StorageError: If a file could not be read.
        CorruptDataError: If a file's content has changed since it was pinned.
    """
    for file in files:
        bucket_url, key = split_url(file.url)
        path = folder / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        open_bucket(bucket_url).download(key, path=path)
        with path.open("rb") as opened:
            found = hashlib.file_digest(opened, "sha256").hexdigest()
        if found != file.sha256:
            raise CorruptDataError(
                f"{file.url} has changed since it was copied",
                received=f"the SHA-256 digest {found}",
                allowed=file.sha256,
                action="deploy it as another version, or submit the job again",
            )
