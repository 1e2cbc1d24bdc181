"""Copies what is deployed into a version's own folder, so that later changes of the original do not change the version.

The service copies bytes. It does not read what they mean: only the server does, without the service's rights.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lockstep.errors import ModelError
from lockstep.jobs.running.order_parts import FileOrder
from lockstep.service.prediction.servers import LOGS, version_folder
from lockstep.service.store import VersionRecord
from lockstep.serving.model_files import MAX_BYTES, ModelFile, fetch_for_another, find_files, find_model
from lockstep.storage import open_bucket


def copy_files(version: VersionRecord, *, bucket: str, folder: Path) -> tuple[FileOrder, ...]:
    """Copies the files of a version, and returns the copies with their digests, the model's file first. Blocks.

    Args:
        version: the version.
        bucket: the URL of the service's default bucket.
        folder: a local folder for temporary files, for this alone.

    Raises:
        ModelError: If there is no model or not only one; for a custom prediction routine or a
            container, no files or too many.
        StorageError: If the bucket cannot be read or written.
        OSError: If the local folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    find = find_model if version.prediction_class is None and version.container is None else find_files
    own = open_bucket(version_folder(version, bucket=bucket))
    copied: list[FileOrder] = []
    num_bytes = 0
    for file in find(version.deployment_uri):
        with fetched(file, bucket=bucket, folder=folder) as (path, digest):
            num_bytes += path.stat().st_size
            if num_bytes > MAX_BYTES:
                raise ModelError(f"{version.deployment_uri} is too large", allowed=f"{MAX_BYTES} bytes")
            own.upload(file.name, path=path)
        copied.append(FileOrder(url=own.url_of(file.name), name=file.name, sha256=digest))
    return tuple(copied)


@contextmanager
def fetched(file: ModelFile, *, bucket: str, folder: Path) -> Iterator[tuple[Path, str]]:
    """Downloads a file for the block, and yields its path and its SHA-256 digest in hexadecimal.

    Args:
        file: the file.
        bucket: the URL of the service's default bucket.
        folder: a local folder for temporary files.

    Raises:
        ModelError: If a link leads to another folder, or the object is not a regular file.
        MissingInputError: If there is no such object.
        StorageError: If the bucket cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="copy-", dir=folder) as temporary:
        path = Path(temporary) / "file"
        fetch_for_another(file.url, path=path, bucket=bucket)
        with path.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        yield path, digest


def delete_files(version: VersionRecord, *, bucket: str) -> None:
    """Deletes the copies of a version's files, unfinished ones too. Idempotent. The logs of its servers stay.

    Raises:
        StorageError: If the bucket cannot be listed or written.
    """
    own = open_bucket(version_folder(version, bucket=bucket))
    for stored in own.list(follows_links=False):
        if not stored.key.startswith(f"{LOGS}/"):
            own.delete(stored.key)
