"""Which URLs of the bucket a request may name: a key of one project names none of another's."""

from __future__ import annotations

import os
from typing import Final

from lockstep.errors import InvalidInputError
from lockstep.jobs.security.access import Principal
from lockstep.storage import join_url

STAGING_FOLDER: Final = "packages"
"""The folder of the bucket for code, beside which each project has a folder of its own."""


def check_location(
    url: str, *, what: str, principal: Principal, project: str, bucket: str, holds_code: bool = False
) -> None:
    """Refuses a URL that is not for a key's project, before anything looks there.

    Whoever has a key of all projects may name any URL. Others may name their project's folder of the service's
    bucket, code that was staged, and buckets elsewhere, as far as the service's own credentials go; of the service's
    machine they may name nothing else.

    Args:
        url: the URL.
        what: the field that names it.
        principal: who asks.
        project: the project that the request is about.
        bucket: URL of the service's default bucket.
        holds_code: whether it is read as code, which may lie where code is staged.

    Raises:
        InvalidInputError: the URL is not theirs.
    """
    if principal.sees_all_projects:
        return
    asked, shared = _parts(url), _parts(bucket)
    own = [join_url(bucket, project), *([join_url(bucket, STAGING_FOLDER)] if holds_code else [])]
    if ".." not in asked:
        if any(asked[: len(parts)] == parts for parts in map(_parts, own)):
            return
        if asked[0] != "file" and asked[: len(shared)] != shared:
            return
    raise InvalidInputError(
        f"{what}: not a place of project {project}", received=url, allowed=f"{own[0]}/..., or a bucket elsewhere"
    )


def _parts(url: str) -> list[str]:
    """Returns a URL's scheme and the names in it, the way to a file as it really is."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme == "file":
        return ["file", *os.path.realpath(rest if separator else url).split("/")[1:]]
    return [scheme, *rest.rstrip("/").split("/")]
