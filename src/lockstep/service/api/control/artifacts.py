"""The files that jobs left in the folders of their outputs: listed, and downloaded (Lockstep's own routes)."""

from __future__ import annotations

import base64
import json
from typing import Annotated, Final

from fastapi import Path
from fastapi.responses import JSONResponse

from lockstep.errors import InvalidInputError
from lockstep.jobs.security.access import Scope
from lockstep.service.api.access import requires_scope
from lockstep.service.api.forms import ArtifactForm, ArtifactListForm
from lockstep.service.api.pages import PageSize, PageToken
from lockstep.service.api.requests import Context, JobName, Project
from lockstep.service.api.resources import timestamp
from lockstep.service.api.routes import make_router
from lockstep.service.control.job_outputs import Artifact, list_artifacts, open_artifact
from lockstep.service.store import GangPart
from lockstep.service.streams import StreamedBody, stream_file
from lockstep.service.threads import Pool, runs_in

DEFAULT_PAGE_SIZE: Final = 100
MAX_PAGE_SIZE: Final = 1000

router = make_router()

_Path = Annotated[str, Path(max_length=4096)]


@router.get("/jobs/{job_id}/artifacts")
@requires_scope(Scope.VIEWER)
@runs_in(Pool.BUCKET)
def artifacts(
    project: Project, job_id: JobName, context: Context, page_size: PageSize = 0, page_token: PageToken = ""
) -> Annotated[JSONResponse, ArtifactListForm]:
    """Returns a page of the files that a job left, output by output, and sorted by path within each.

    The logs begin a page of their own, so that the page before them may be short or empty.
    """
    job = context.jobs.get(project=project, job_id=job_id, gang=GangPart.NONE)
    found, following = list_artifacts(
        job,
        bucket=context.settings.bucket,
        size=min(page_size or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE),
        after=_decode(page_token),
    )
    form: ArtifactListForm = {"artifacts": [_form(artifact) for artifact in found]}
    if following is not None:
        form["nextPageToken"] = _encode(following)
    return JSONResponse(form)  # not serialized by FastAPI, which would visit each field of each file


@router.get("/jobs/{job_id}/artifacts/{path:path}")
@requires_scope(Scope.VIEWER)
@runs_in(Pool.BUCKET)
def artifact(project: Project, job_id: JobName, path: _Path, context: Context) -> StreamedBody:
    """Returns a file that a job left, piece by piece."""
    job = context.jobs.get(project=project, job_id=job_id, gang=GangPart.NONE)
    file, size_bytes = open_artifact(job, path, bucket=context.settings.bucket)
    return stream_file(file, name=path.rpartition("/")[2], size_bytes=size_bytes, streams=context.streams)


def _form(found: Artifact) -> ArtifactForm:
    return {
        "path": found.path,
        "output": found.output,
        "sizeBytes": found.size_bytes,
        "updateTime": _time(found.modified_time_s),
    }


def _time(time_s: float) -> str | None:
    try:
        return timestamp(time_s) if time_s else None
    except (ValueError, OverflowError, OSError):  # programs choose the times of their files
        return None


def _encode(place: tuple[str, str]) -> str:
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode()


def _decode(token: str) -> tuple[str, str] | None:
    if not token:
        return None
    try:
        output, key = json.loads(base64.urlsafe_b64decode(token.encode()))
        if not isinstance(output, str) or not isinstance(key, str):
            raise TypeError(output)
    except (ValueError, TypeError, RecursionError):
        raise InvalidInputError("pageToken was not issued by this service", received=token) from None
    return output, key
