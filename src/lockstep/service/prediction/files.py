"""Copies what is deployed into a version's own folder, so that later changes of the original do not change the version.

The service copies bytes. It does not read what they mean: only the server does, without the service's rights.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path

from lockstep.jobs.running.orders import FileOrder
from lockstep.service.prediction.servers import MODEL_FILE, version_folder
from lockstep.service.store import VersionRecord
from lockstep.serving.model_files import fetch_for_another, find_model
from lockstep.storage import open_bucket


def copy_files(version: VersionRecord, *, bucket: str, folder: Path) -> tuple[FileOrder, ...]:
    """Copies the files of a version, and returns the copies with their digests. Blocks.

    Args:
        version: the version.
        bucket: the URL of the service's default bucket.
        folder: a local folder for temporary files, for this alone. What a killed service left there is deleted.

    Raises:
        ModelError: If there is no model, or not only one.
        StorageError: If the bucket cannot be read or written.
        OSError: If the local folder cannot be written.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(prefix="copy-", dir=folder) as temporary:
        path = Path(temporary) / MODEL_FILE
        fetch_for_another(find_model(version.deployment_uri), path=path, bucket=bucket)
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        own = open_bucket(version_folder(version, bucket=bucket))
        own.upload(MODEL_FILE, path=path)
    return (FileOrder(url=own.url_of(MODEL_FILE), name=MODEL_FILE, sha256=digest),)


def delete_files(version: VersionRecord, *, bucket: str) -> None:
    """Deletes the copies of a version's files. Idempotent. The logs of its servers stay.

    Raises:
        StorageError: If the bucket cannot be written.
    """
    own = open_bucket(version_folder(version, bucket=bucket))
    for file in version.files:
        own.delete(file.name)
