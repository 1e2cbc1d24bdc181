"""Checks the URLs in a request: a key of one project may not use locations of another project."""

from __future__ import annotations

import os
from typing import Final

from lockstep.errors import InvalidInputError
from lockstep.jobs.security.access import Principal
from lockstep.service.security.job_folders import REQUEST_LOGS
from lockstep.storage import check_shared_url, join_url, local_path

STAGING_FOLDER: Final = "packages"
"""The folder of the bucket for staged code, beside the folders of the projects."""


def check_location(
    url: str, *, what: str, principal: Principal, project: str, bucket: str, holds_code: bool = False
) -> None:
    """Rejects a URL that a key may not use for its project, before the URL is accessed.

    A key of all projects may use any URL. Other keys may use their project's folder in the service's bucket, staged
    code, and other buckets, which are accessed with the service's credentials. They may use no other path on the
    service's machine.

    Args:
        url: the URL.
        what: the field that specifies the URL, for error messages.
        principal: the sender of the request.
        project: the project of the request.
        bucket: the URL of the service's default bucket.
        holds_code: whether the URL is for code, which may be in the staging folder.

    Raises:
        InvalidInputError: If the key may not use the URL.
    """
    if principal.is_for_all_projects:
        return
    asked, shared = _parts(url), _parts(bucket)
    own = [join_url(bucket, project), *([join_url(bucket, STAGING_FOLDER)] if holds_code else [])]
    if ".." not in asked:
        if any(asked[: len(parts)] == parts for parts in map(_parts, own)):
            return
        if asked[0] != "file" and asked[: len(shared)] != shared:
            return
    raise InvalidInputError(
        f"{what}: not a location of project {project}", received=url, allowed=f"{own[0]}/..., or another bucket"
    )


def is_in_project(url: str, *, project: str, bucket: str) -> bool:
    """Whether a URL is in a project's folder of the service's bucket, or is that folder.

    Args:
        url: the URL.
        project: the project.
        bucket: the URL of the service's default bucket.
    """
    own, asked = _parts(join_url(bucket, project)), _parts(url)
    return ".." not in asked and asked[: len(own)] == own


def request_log_folder(url: str, *, what: str, principal: Principal, project: str, bucket: str) -> str:
    """Returns the folder that requests for predictions are written to, by the service with its own rights.

    On the service's machine, it is in a folder of the project that programs cannot enter: they could make a link there,
    which the service would follow.

    Args:
        url: the URL of the folder; "" for the project's own.
        what: the field that specifies the URL, for error messages.
        principal: the sender of the request.
        project: the project of the request.
        bucket: the URL of the service's default bucket.

    Raises:
        InvalidInputError: If the key may not use the URL, or the service would not write there.
    """
    own = join_url(bucket, project, REQUEST_LOGS)
    if not url:
        return own
    check_shared_url(url, what=what)
    check_location(url, what=what, principal=principal, project=project, bucket=bucket)
    own_parts = _parts(own)
    if local_path(url) is not None and _parts(url)[: len(own_parts)] != own_parts:
        raise InvalidInputError(
            f"{what}: requests are not written there", received=url, allowed=f"{own}, or a bucket elsewhere"
        )
    return url


def _parts(url: str) -> list[str]:
    """Returns the scheme of a URL and the parts of its path. In the path of a file, links are resolved."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme == "file":
        return ["file", *os.path.realpath(rest if separator else url).split("/")[1:]]
    return [scheme, *rest.rstrip("/").split("/")]
