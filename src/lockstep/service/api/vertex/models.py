"""``projects.locations.models`` of Vertex AI: uploaded models."""

from __future__ import annotations

import time
from functools import partial
from typing import Annotated, Final

from fastapi import Query

from lockstep.errors import InvalidInputError, UnimplementedError
from lockstep.jobs.lists.filters import parse_vertex_filter
from lockstep.jobs.security.access import Scope
from lockstep.service.api.access import RequestPrincipal, requires_scope
from lockstep.service.api.forms import VertexModelForm, VertexModelListForm, VertexOperationForm
from lockstep.service.api.pages import Filter, PageSize, PageToken, list_answer
from lockstep.service.api.requests import Body, Context, Name
from lockstep.service.api.routes import make_router
from lockstep.service.api.vertex.deploying import check_server
from lockstep.service.api.vertex.places import InPlace, UploadedName, WholeList
from lockstep.service.api.vertex.requests import UploadRequest, VertexModel, parse
from lockstep.service.api.vertex.resources import (
    MODEL_VERSION,
    TYPE_PREFIX,
    Place,
    done_operation,
    model_resource,
)
from lockstep.service.context import ServiceContext
from lockstep.service.security.locations import check_location
from lockstep.service.store import UploadedModelRecord
from lockstep.storage import check_shared_url

UPLOAD = "upload_model_"
"""The beginning of the names of operations that uploaded a model."""

_PATCHED: Final = ("description", "labels")

router = make_router()


@router.post("/models:upload")
@requires_scope(Scope.SUBMITTER)
def upload_model(place: InPlace, body: Body, context: Context, principal: RequestPrincipal) -> VertexOperationForm:
    """``projects.locations.models.upload``. The returned operation is done. The files are copied by `deployModel`."""
    request = parse(UploadRequest, body)
    context.catalogue.price_region(place.location, what="location")
    model, what = request.model, "model.artifactUri"
    check_server(model)
    if model.artifact_uri:
        check_shared_url(model.artifact_uri, what=what)
        check_location(
            model.artifact_uri, what=what, principal=principal, project=place.project, bucket=context.settings.bucket
        )
    record = context.uploads.create(
        project=place.project,
        name=request.name,
        description=model.description,
        labels=model.labels,
        region=place.location,
        artifact_uri=model.artifact_uri,
        container_spec=None if model.container_spec is None else model.container_spec.to_json(),
    )
    return upload_operation(record, place=place)


def upload_operation(record: UploadedModelRecord, *, place: Place) -> VertexOperationForm:
    """Returns the operation that uploaded a model."""
    return done_operation(
        "UploadModel",
        name=f"{UPLOAD}{record.name}",
        place=place,
        time_s=record.create_time_s,
        response={
            "@type": f"{TYPE_PREFIX}UploadModelResponse",
            "model": f"{place.parent}/models/{record.name}",
            "modelVersionId": MODEL_VERSION,
        },
    )


@router.get("/models", dependencies=[WholeList])
@requires_scope(Scope.VIEWER)
def list_models(
    place: InPlace, context: Context, filter_text: Filter = "", page_size: PageSize = 0, page_token: PageToken = ""
) -> VertexModelListForm:
    """``projects.locations.models.list``, the newest first."""
    predicate = parse_vertex_filter(filter_text)
    return list_answer(
        "models",
        read=partial(context.uploads.page, project=place.project, region=place.location),
        holds=(lambda model: predicate(model_resource(model, place=place))) if filter_text else None,
        position=lambda model: (model.create_time_s, model.name),
        show=lambda models: [_resource(model, place, context) for model in models],
        size=page_size,
        token=page_token,
    )


@router.get("/models/{model}:listVersions", dependencies=[WholeList])
@requires_scope(Scope.VIEWER)
def list_versions(
    place: InPlace,
    model: UploadedName,
    context: Context,
    filter_text: Filter = "",
    page_size: PageSize = 0,
    page_token: PageToken = "",
) -> VertexModelListForm:
    """``projects.locations.models.listVersions``: the only one."""
    record = context.uploads.get(project=place.project, name=model, region=place.location)
    predicate = parse_vertex_filter(filter_text)
    return list_answer(
        "models",
        read=lambda *, size, before: [record] if before is None else [],
        holds=(lambda found: predicate(model_resource(found, place=place))) if filter_text else None,
        position=lambda found: (found.create_time_s, found.name),
        show=lambda found: [_resource(each, place, context) for each in found],
        size=page_size,
        token=page_token,
    )


@router.get("/models/{model}")
@requires_scope(Scope.VIEWER)
def get_model(place: InPlace, model: UploadedName, context: Context) -> VertexModelForm:
    """``projects.locations.models.get``."""
    record = context.uploads.get(project=place.project, name=model, region=place.location)
    return _resource(record, place, context)


@router.patch("/models/{model}")
@requires_scope(Scope.SUBMITTER)
def patch_model(
    place: InPlace,
    model: UploadedName,
    body: Body,
    context: Context,
    update_mask: Annotated[str, Query(alias="updateMask")] = "",
) -> VertexModelForm:
    """``projects.locations.models.patch``: the description and the labels."""
    record = context.uploads.get(project=place.project, name=model, region=place.location)
    mask = _read_mask(update_mask)
    # A client sends the whole resource that it has read. Only the fields of the mask are meant.
    meant = {key: body[key] for key in mask if body.get(key) is not None}
    given = parse(VertexModel, {"displayName": record.name, **meant})
    patched = context.uploads.update(record, changes={key: getattr(given, key) for key in mask})
    return _resource(patched, place, context)


def _read_mask(update_mask: str) -> list[str]:
    mask: list[str] = []
    for path in filter(None, update_mask.replace(" ", "").split(",")):
        if path in ("displayName", "display_name"):
            raise UnimplementedError(
                "updateMask: displayName is the model's name, which does not change", action="upload it again"
            )
        if path not in _PATCHED:
            raise InvalidInputError("updateMask", received=path, allowed=_PATCHED)
        mask.append(path)
    if not mask:
        raise InvalidInputError("updateMask: it names no field", allowed=_PATCHED)
    return mask


@router.delete("/models/{model}")
@requires_scope(Scope.SUBMITTER)
def delete_model(place: InPlace, model: Name, context: Context) -> VertexOperationForm:
    """``projects.locations.models.delete``. The model must not be deployed. The returned operation is done."""
    context.uploads.delete(project=place.project, name=model, region=place.location)
    return done_operation("Delete", name=f"delete_model_{model}", place=place, time_s=time.time(), response=None)


def _resource(model: UploadedModelRecord, place: Place, context: ServiceContext) -> VertexModelForm:
    versions = context.uploads.versions_of(project=place.project, name=model.name)
    return model_resource(model, place=place, versions=versions)
