"""Lockstep's own routes for packed data sets in the buckets that a key may read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from fastapi import Query
from fastapi.responses import JSONResponse

from lockstep.errors import InvalidInputError
from lockstep.jobs.security.access import Principal, Scope
from lockstep.service.api.access import RequestPrincipal, requires_scope
from lockstep.service.api.forms import DataSetForm, DataSetListForm, DataSetPageForm
from lockstep.service.api.requests import Context, Project
from lockstep.service.api.resources import timestamp
from lockstep.service.api.routes import make_router
from lockstep.service.context import ServiceContext
from lockstep.service.security.locations import check_location, is_in_project
from lockstep.storage import check_shared_url, join_url, split_url

if TYPE_CHECKING:  # the rooms of data are imported when somebody asks, so that the service starts sooner
    from lockstep.service.data_sets import DataSet

DEFAULT_PAGE_SIZE: Final = 20
MAX_PAGE_SIZE: Final = 50
MAX_RECORDS: Final = 100
MAX_SHARDS: Final = 200
MAX_CLASSES: Final = 200
MAX_FEATURES: Final = 100
_MAX_DIGITS: Final = 9

router = make_router()

_Url = Annotated[str, Query(max_length=2000)]
_PageSize = Annotated[int, Query(alias="pageSize", ge=0)]
_PageToken = Annotated[str, Query(alias="pageToken", max_length=40)]


@router.get("/datasets")
@requires_scope(Scope.VIEWER)
def list_data_sets(
    project: Project,
    context: Context,
    principal: RequestPrincipal,
    folder: _Url = "",
    page_size: _PageSize = 0,
    page_token: _PageToken = "",
) -> DataSetListForm:
    """Returns a page of the packed data sets in a folder, by name. By default, it is the project's own folder.

    Viewers may name folders of their project in the service's bucket, and submitters also other buckets.
    """
    from lockstep.service import data_sets

    if page_token and not (page_token.isascii() and page_token.isdecimal() and len(page_token) <= _MAX_DIGITS):
        raise InvalidInputError("pageToken was not issued by this service", received=page_token)
    bucket = context.settings.bucket
    folder = folder or join_url(bucket, project)
    _check(folder, what="folder", principal=principal, project=project, context=context)
    first, size = int(page_token or 0), min(page_size or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)
    found, is_cut = data_sets.list_data_sets(folder)
    page = found[first : first + size]
    form: DataSetListForm = {
        "folder": folder,
        "datasets": [_form(data_sets.describe_data_set(group, folder=folder, bucket=bucket)) for group in page],
        "truncated": is_cut,
    }
    if first + size < len(found):
        form["nextPageToken"] = str(first + size)
    return form


@router.get("/datasets:read")
@requires_scope(Scope.VIEWER)
def read_data_set(
    project: Project,
    context: Context,
    principal: RequestPrincipal,
    url: _Url,
    num_records: Annotated[int, Query(alias="numRecords", ge=0, le=MAX_RECORDS)] = 24,
) -> Annotated[JSONResponse, DataSetPageForm]:
    """Returns a packed data set with its first files, and its first records with small images."""
    from lockstep.service import data_sets

    _check(url, what="url", principal=principal, project=project, context=context)
    bucket = context.settings.bucket
    group = data_sets.find_data_set(url)
    folder, _ = split_url(url)
    found = data_sets.describe_data_set(group, folder=folder, bucket=bucket)
    first = data_sets.read_first_records(found, limit=num_records, bucket=bucket)
    shards = [
        {
            "file": file.key.rpartition("/")[2],
            "numRecords": data_sets.num_records_of(file),
            "sizeBytes": file.size_bytes,
            "missing": False,
        }
        for file in found.files[:MAX_SHARDS]
    ]
    missing = [{"file": name, "numRecords": None, "sizeBytes": 0, "missing": True} for name in found.missing]
    form = _form(found)
    if first.problem is not None:
        form["problems"].append(first.problem)
    records = [{"values": record.values, "label": record.label, "image": record.image_url} for record in first.records]
    # Not serialized by FastAPI: it would visit each value of each record.
    return JSONResponse({**form, "shards": [*shards, *missing[:MAX_SHARDS]], "records": records})


def _check(url: str, *, what: str, principal: Principal, project: str, context: ServiceContext) -> None:
    """Rejects a URL that the key may not read.

    Whoever may submit jobs can read it with a job, too. Viewers can only look at what their project has.

    Raises:
        InvalidInputError: If the key may not use the URL.
    """
    bucket = context.settings.bucket
    check_shared_url(url, what=what)
    check_location(url, what=what, principal=principal, project=project, bucket=bucket)
    if not principal.scope.includes(Scope.SUBMITTER) and not is_in_project(url, project=project, bucket=bucket):
        raise InvalidInputError(
            f"{what}: not a location of project {project}", received=url, allowed=f"{join_url(bucket, project)}/..."
        )


def _form(found: DataSet) -> DataSetForm:
    from lockstep.data.examples.description import describe_feature

    manifest = found.manifest
    features = {} if manifest is None else manifest.features
    return {
        "url": found.url,
        "name": found.name,
        "numRecords": found.num_records,
        "sizeBytes": sum(file.size_bytes for file in found.files),
        "numShards": len(found.files),
        "numMissing": len(found.missing),
        "features": [
            {"name": name, "text": describe_feature(feature)} for name, feature in list(features.items())[:MAX_FEATURES]
        ],
        "classes": [] if manifest is None else list(manifest.classes[:MAX_CLASSES]),
        "source": "" if manifest is None else manifest.source,
        "createTime": None if manifest is None else timestamp(manifest.created.timestamp()),
        "problems": list(found.problems),
    }
