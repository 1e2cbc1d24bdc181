"""Which models a job left, wherever in its folder its program put them."""

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
    """A model that a job left.

    Attributes:
        url: where it lies.
        size_bytes: how big it is.
    """

    url: str
    size_bytes: int


def find_models(job: JobRecord) -> list[JobModel]:
    """Returns the ``.keras`` files that lie where a job's results belong, sorted by their URLs.

    Its folder for models is looked at first; only where that has none, everything below the job's folder: a program
    may have written beside it. A link that a program made in a folder of the service's machine is followed nowhere.

    Args:
        job: the job.

    Raises:
        StorageError: the bucket could not be listed.
    """
    model_folder = job.outputs["model"]
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
