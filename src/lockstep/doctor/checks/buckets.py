"""The bucket: whether it can be listed, written and read, and whether what it needs is installed."""

from __future__ import annotations

import secrets
from typing import Final

from lockstep.doctor.checks.service_look import answered
from lockstep.doctor.findings import Finding, Result, error
from lockstep.doctor.surroundings import Surroundings
from lockstep.errors import InvalidInputError, LockstepError, StoragePermissionError
from lockstep.jobs.security.access import Scope
from lockstep.storage import QUICK_POLICY, local_path, open_bucket

FOLDER: Final = "packages"
"""The folder in which `lockstep submit` puts code, so who submits may write there."""

_CREDENTIALS: Final = {
    "gs": "gcloud auth application-default login",
    "s3": "aws configure",
}


def check_bucket(surroundings: Surroundings) -> Result:
    """Writes, reads and deletes a small object in the service's bucket."""
    bucket, may_write = surroundings.bucket, True
    if not surroundings.of_service:
        found = answered(surroundings)
        if found is None or found.about_key is None:
            return Result(skipped="no service answers")
        bucket = str(found.about_key["bucket"])
        may_write = Scope(found.about_key["scope"]).includes(Scope.SUBMITTER)
        if local_path(bucket) is not None and not found.address.is_on_this_machine:
            return Result(skipped=f"{bucket} is a folder of the service's machine; submit with --staging-bucket")
    if not bucket:
        return Result(skipped="not known")
    finding = try_bucket(bucket, may_write=may_write)
    did = "written and read" if may_write else "listed; this key may not submit, so nothing was written"
    return Result(findings=() if finding is None else (finding,), detail=f"{bucket}: {did}")


def try_bucket(url: str, *, may_write: bool) -> Finding | None:
    """Uses a bucket; returns what is wrong with it, or None.

    Args:
        url: the URL of the bucket.
        may_write: whether to write an object, read it and delete it; otherwise the bucket is listed.
    """
    key = f"{FOLDER}/doctor-{secrets.token_hex(8)}"
    scheme = url.partition("://")[0] if "://" in url else ""
    try:
        bucket = open_bucket(url, policy=QUICK_POLICY)
        if not may_write:
            bucket.list(key)
            return None
        data = key.encode()
        try:
            bucket.write(key, data)
            returned = bucket.read(key)
        finally:
            bucket.delete(key)
    except InvalidInputError as problem:  # a missing extra
        remedy = f"pip install 'lockstep-train[{'gcs' if scheme == 'gs' else scheme}]'" if scheme else "lockstep up"
        return error("the bucket cannot be opened", received=problem.what, needed=f"a client for {url}", remedy=remedy)
    except StoragePermissionError as problem:
        return error(
            "the bucket denies access",
            received=problem.what,
            needed="credentials that may read, list, write and delete objects",
            remedy=_CREDENTIALS.get(scheme, problem.action or f"ls -ld {url}"),
        )
    except LockstepError as problem:
        return error(
            "the bucket cannot be used",
            received=problem.what,
            needed="a bucket that can be read and written",
            remedy=problem.action or f"lockstep bucket ls {url}",
        )
    if returned != data:
        return error(
            "the bucket returns other bytes than were written",
            received=f"{len(returned)} bytes of {len(data)} at {url}",
            needed="a bucket whose objects can be read after they are written",
            remedy=f"lockstep bucket ls {url}",
        )
    return None
