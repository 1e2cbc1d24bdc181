"""Finds the models that a job saved, anywhere in its folder."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import Final, final

from lockstep.service.store import JobRecord
from lockstep.storage import QUICK_POLICY, open_bucket

SUFFIX: Final = ".keras"


@final
@dataclass(frozen=True, kw_only=True)
class JobModel:
    """A model that a job saved.

    Attributes:
        url: the URL of the file.
        size_bytes: the size of the file, in bytes.
    """

    url: str
    size_bytes: int


def find_models(job: JobRecord) -> list[JobModel]:
    """Returns the ``.keras`` files of a job, sorted by URL.

    The job's folder for models is listed first. If it has none, the whole folder of the job is listed, because a
    program may have written elsewhere in it. Links that a program made in a folder on the service's machine are not
    followed. A batch prediction saves none.

    Args:
        job: the job.

    Raises:
        StorageError: If the bucket cannot be listed.
    """
    model_folder = job.outputs.get("model")
    if model_folder is None:
        return []
    for folder in (model_folder, posixpath.dirname(model_folder.rstrip("/"))):
        bucket = open_bucket(folder, policy=QUICK_POLICY)
        found = [
            JobModel(url=bucket.url_of(item.key), size_bytes=item.size_bytes)
            for item in bucket.list(follows_links=False)
            if item.key.endswith(SUFFIX) and item.size_bytes
        ]
        if found:
            return found
    return []
