"""``projects.locations.endpoints`` of Vertex AI: a model here, and its versions as the models that are deployed."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import partial
from typing import Annotated, Final

from fastapi import Query

from lockstep.errors import InvalidInputError, NotFoundError, UnimplementedError
from lockstep.jobs.lists.filters import parse_vertex_filter
from lockstep.jobs.security.access import Scope
from lockstep.service.api.access import RequestPrincipal, requires_scope
from lockstep.service.api.forms import (
    EndpointForm,
    EndpointListForm,
    VertexOperationForm,
)
from lockstep.service.api.pages import Filter, PageSize, PageToken, list_answer
from lockstep.service.api.prediction.model_requests import parse_version
from lockstep.service.api.prediction.models import record_version
from lockstep.service.api.prediction.patches import parse_model_patch
from lockstep.service.api.requests import Body, Context, Name
from lockstep.service.api.routes import make_router
from lockstep.service.api.vertex.deploying import version_document, with_vertex_names
from lockstep.service.api.vertex.mutating import MutateRequest, change_of
from lockstep.service.api.vertex.places import InPlace, WholeList
from lockstep.service.api.vertex.requests import (
    NEW,
    DeployRequest,
    EndpointRequest,
    UndeployRequest,
    check_split,
    name_of,
    parse,
)
from lockstep.service.api.vertex.resources import (
    TYPE_PREFIX,
    Place,
    done_operation,
    endpoint_of,
    endpoint_resource,
    operation_resource,
)
from lockstep.service.context import ServiceContext
from lockstep.service.store import ModelChanges, ModelRecord, UploadedModelRecord

CREATE: Final = "create_endpoint_"
"""The beginning of the names of operations that created an endpoint."""
_PATCHED: Final = {"description": "description", "labels": "labels", "trafficSplit": "lockstep.trafficSplit"}
"""The paths of an endpoint that can be changed, with those of the model that it is."""
_MODEL_NAME: Final = re.compile(r"projects/([^/]+)/locations/([^/]+)/models/([a-zA-Z]\w{0,127})(@1|@default)?")

router = make_router()


@router.post("/endpoints")
@requires_scope(Scope.SUBMITTER)
def create_endpoint(
    place: InPlace, body: Body, context: Context, endpoint_id: Annotated[str, Query(alias="endpointId")] = ""
) -> VertexOperationForm:
    """``projects.locations.endpoints.create``. The returned operation is done."""
    request = parse(EndpointRequest, body)
    if endpoint_id and name_of(endpoint_id) != endpoint_id:
        allowed = "1 to 128 letters, digits and underscores, starting with a letter: it is the endpoint's name"
        raise InvalidInputError("endpointId", received=endpoint_id, allowed=allowed)
    context.catalogue.price_region(place.location, what="location")
    model = context.models.create_model(
        project=place.project,
        name=endpoint_id or name_of(request.display_name),
        description=request.description,
        labels=request.labels,
        region=place.location,
    )
    return create_operation(model, place=place, context=context)


def create_operation(model: ModelRecord, *, place: Place, context: ServiceContext) -> VertexOperationForm:
    """Returns the operation that created an endpoint, with the endpoint as it is now."""
    resource = endpoint_resource(model, place=place, context=context)
    return done_operation(
        "CreateEndpoint",
        name=f"{CREATE}{model.name}",
        place=place,
        time_s=model.create_time_s,
        response={"@type": f"{TYPE_PREFIX}Endpoint", **resource},
    )


@router.get("/endpoints", dependencies=[WholeList])
@requires_scope(Scope.VIEWER)
def list_endpoints(
    place: InPlace, context: Context, filter_text: Filter = "", page_size: PageSize = 0, page_token: PageToken = ""
) -> EndpointListForm:
    """``projects.locations.endpoints.list``, the newest first: the models of the location, and those of no region."""
    predicate = parse_vertex_filter(filter_text)
    show = partial(endpoint_resource, place=place, context=context)
    return list_answer(
        "endpoints",
        read=partial(context.models.page_models, project=place.project),
        holds=lambda model: place.has(model) and (not filter_text or predicate(show(model))),
        position=lambda model: (model.create_time_s, model.name),
        show=lambda models: [show(model) for model in models],
        size=page_size,
        token=page_token,
    )


@router.get("/endpoints/{model}")
@requires_scope(Scope.VIEWER)
def get_endpoint(place: InPlace, model: Name, context: Context) -> EndpointForm:
    """``projects.locations.endpoints.get``."""
    return endpoint_resource(endpoint_of(place, model, context), place=place, context=context)


@router.patch("/endpoints/{model}")
@requires_scope(Scope.SUBMITTER)
def patch_endpoint(
    place: InPlace,
    model: Name,
    body: Body,
    context: Context,
    principal: RequestPrincipal,
    update_mask: Annotated[str, Query(alias="updateMask")] = "",
) -> EndpointForm:
    """``projects.locations.endpoints.patch``: the description, the labels, and the traffic split."""
    endpoint_of(place, model, context)
    parse(EndpointRequest, {"displayName": model, **{key: body[key] for key in body if key != "trafficSplit"}})
    mask = _model_mask(update_mask)
    document = {key: body[key] for key in ("description", "labels", "etag") if body.get(key) is not None}
    if _PATCHED["trafficSplit"] in mask:
        document["lockstep"] = {"trafficSplit": _read_split(body.get("trafficSplit"))}
    try:
        change = parse_model_patch({"name": model, **document}, update_mask=",".join(mask)).change_model
    except InvalidInputError as error:
        raise with_vertex_names(error) from None
    context.models.patch_model(project=place.project, name=model, change=change, changed_by=principal.label)
    return endpoint_resource(endpoint_of(place, model, context), place=place, context=context)


def _model_mask(update_mask: str) -> list[str]:
    mask: list[str] = []
    for path in filter(None, update_mask.replace(" ", "").split(",")):
        path = {"traffic_split": "trafficSplit"}.get(path, path)
        first, _, rest = path.partition(".")
        if first in ("displayName", "display_name"):
            raise UnimplementedError(
                "updateMask: displayName is the endpoint's name, which does not change", action="remove it"
            )
        if first not in _PATCHED or (rest and first != "labels"):
            raise InvalidInputError("updateMask", received=path, allowed=tuple(_PATCHED))
        mask.append(path if rest else _PATCHED[first])
    if not mask:
        raise InvalidInputError("updateMask: it names no field", allowed=tuple(_PATCHED))
    return mask


def _read_split(split: object) -> Mapping[str, int]:
    is_split = isinstance(split, dict) and all(type(share) is int for share in split.values())
    if not is_split:
        raise InvalidInputError("trafficSplit", received=split, allowed="an object of shares in percent")
    return split  # type: ignore[return-value] - checked above


@router.delete("/endpoints/{model}")
@requires_scope(Scope.SUBMITTER)
def delete_endpoint(place: InPlace, model: Name, context: Context) -> VertexOperationForm:
    """``projects.locations.endpoints.delete``. The endpoint must have no deployed models."""
    endpoint_of(place, model, context)
    operation = context.models.delete_model(project=place.project, name=model)
    return operation_resource(operation, place=place, context=context)


@router.post("/endpoints/{model}:deployModel")
@requires_scope(Scope.SUBMITTER)
def deploy_model(
    place: InPlace, model: Name, body: Body, context: Context, principal: RequestPrincipal
) -> VertexOperationForm:
    """``projects.locations.endpoints.deployModel``. Returns an operation; the server is started afterwards."""
    request = parse(DeployRequest, body)
    deployed = request.deployed_model
    uploaded = _uploaded(deployed.model, place=place, context=context)
    endpoint_of(place, model, context)
    split = check_split(request.traffic_split)
    taken = {version.name for version in context.models.list_versions(project=place.project, model=model)}
    name = deployed.id or _free_name(name_of(deployed.display_name or uploaded.name), taken=taken)
    document = version_document(deployed, endpoint=model, name=name, model=uploaded)
    try:
        operation = record_version(
            parse_version(document),
            project=place.project,
            model=model,
            context=context,
            principal=principal,
            uploaded_model=uploaded.name,
            split_when_ready=split and {name if each == NEW else each: share for each, share in split.items()},
        )
    except InvalidInputError as error:
        raise with_vertex_names(error) from None
    return operation_resource(operation, place=place, context=context)


def _uploaded(name: str, *, place: Place, context: ServiceContext) -> UploadedModelRecord:
    match = _MODEL_NAME.fullmatch(name)
    if match is None:
        allowed = f"{place.parent}/models/NAME, of an uploaded model"
        raise InvalidInputError("deployedModel.model", received=name, allowed=allowed)
    if match[1] != place.project:
        raise NotFoundError(f"deployedModel.model: there is no uploaded model {name} in {place.parent}")
    return context.uploads.get(project=match[1], name=match[3], region=match[2])


def _free_name(name: str, *, taken: Collection[str]) -> str:
    """Returns a name that no version of the model has: the name itself, or the name with a number."""
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name[:120]}_{number}"
    return free


@router.post("/endpoints/{model}:undeployModel")
@requires_scope(Scope.SUBMITTER)
def undeploy_model(
    place: InPlace, model: Name, body: Body, context: Context, principal: RequestPrincipal
) -> VertexOperationForm:
    """``projects.locations.endpoints.undeployModel``. Returns an operation; the server is ended afterwards."""
    request = parse(UndeployRequest, body)
    endpoint_of(place, model, context)
    split = check_split(request.traffic_split)
    if split is not None:
        if request.deployed_model_id in split:
            raise InvalidInputError("trafficSplit", received=dict(split), allowed="deployed models that stay")
        change = ModelChanges(split=split)
        context.models.patch_model(
            project=place.project, name=model, change=lambda _: change, changed_by=principal.label
        )
    operation = context.models.begin_delete_version(
        project=place.project, model=model, name=request.deployed_model_id, deleted_by=principal.label
    )
    return operation_resource(operation, place=place, context=context)


@router.post("/endpoints/{model}:mutateDeployedModel")
@requires_scope(Scope.SUBMITTER)
def mutate_deployed_model(place: InPlace, model: Name, body: Body, context: Context) -> VertexOperationForm:
    """``projects.locations.endpoints.mutateDeployedModel``: the numbers of replicas.

    Returns an operation, which is done when there are as many as asked for.
    """
    request = parse(MutateRequest, body)
    endpoint_of(place, model, context)
    change = partial(change_of, counts=request.counts())
    try:
        operation = context.models.patch_version(
            project=place.project, model=model, name=request.deployed_model.id, change=change
        )
    except InvalidInputError as error:
        raise with_vertex_names(error) from None
    return operation_resource(operation, place=place, context=context)
