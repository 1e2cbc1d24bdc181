"""``projects.models`` and ``projects.models.versions`` of the contract."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

from fastapi import Query

from lockstep.errors import ConfigError, InvalidInputError
from lockstep.jobs.input.documents import parse_training_input
from lockstep.jobs.input.gangs import Gang, resolve
from lockstep.jobs.lists.filters import parse_model_filter, parse_version_filter
from lockstep.jobs.parsing.rules import parse_document
from lockstep.jobs.security.access import Principal, Scope
from lockstep.service.api.access import RequestPrincipal, requires_scope
from lockstep.service.api.forms import ModelForm, ModelListForm, OperationForm, VersionForm, VersionListForm
from lockstep.service.api.pages import Filter, PageSize, PageToken, list_answer
from lockstep.service.api.prediction.batching import requested_batching
from lockstep.service.api.prediction.containers import check_container, version_container
from lockstep.service.api.prediction.model_requests import OwnRequestLogging, VersionRequest, parse_model, parse_version
from lockstep.service.api.prediction.patches import check_etag, parse_model_patch, parse_version_patch
from lockstep.service.api.prediction.scaling import scaling_policy
from lockstep.service.api.prediction.traffic import RollbackRequest
from lockstep.service.api.prediction.views import model_of, operation_of, version_of
from lockstep.service.api.requests import Body, Context, Name, Project
from lockstep.service.api.resources import model_etag, version_resource
from lockstep.service.api.routes import make_router
from lockstep.service.context import ServiceContext
from lockstep.service.control.orders import is_simulated
from lockstep.service.prediction.servers import server_input
from lockstep.service.security.locations import check_location, request_log_folder
from lockstep.service.store import ModelRecord, OperationRecord, RequestLogging, VersionRecord
from lockstep.storage import check_shared_url

router = make_router()

UpdateMask = Annotated[str, Query(alias="updateMask")]


@router.post("/models")
@requires_scope(Scope.SUBMITTER)
def create_model(project: Project, body: Body, context: Context) -> ModelForm:
    """``projects.models.create``."""
    request = parse_model(body)
    context.catalogue.price_region(request.region, what="regions[0]")
    model = context.models.create_model(
        project=project,
        name=request.name,
        description=request.description,
        labels=request.labels,
        region=request.region,
        max_versions=request.lockstep.max_versions or None,
    )
    return model_of(model, context)


@router.get("/models")
@requires_scope(Scope.VIEWER)
def list_models(
    project: Project, context: Context, filter_text: Filter = "", page_size: PageSize = 0, page_token: PageToken = ""
) -> ModelListForm:
    """``projects.models.list``, the newest first."""
    predicate = parse_model_filter(filter_text)
    return list_answer(
        "models",
        read=partial(context.models.page_models, project=project),
        holds=(lambda model: predicate(model_of(model, context, with_changes=False))) if filter_text else None,
        position=lambda model: (model.create_time_s, model.name),
        show=lambda models: [model_of(model, context, with_changes=False) for model in models],
        size=page_size,
        token=page_token,
    )


@router.get("/models/{model}")
@requires_scope(Scope.VIEWER)
def get_model(project: Project, model: Name, context: Context) -> ModelForm:
    """``projects.models.get``."""
    return model_of(context.models.get_model(project=project, name=model), context)


@router.patch("/models/{model}")
@requires_scope(Scope.SUBMITTER)
def patch_model(
    project: Project,
    model: Name,
    body: Body,
    context: Context,
    principal: RequestPrincipal,
    update_mask: UpdateMask = "",
) -> OperationForm:
    """``projects.models.patch``. If an etag is sent, it must still be the model's. The returned operation is done."""
    change = parse_model_patch(body, update_mask=update_mask).change_model
    operation = context.models.patch_model(project=project, name=model, change=change, changed_by=principal.label)
    return operation_of(operation, context)


@router.post("/models/{model}:rollback")
@requires_scope(Scope.SUBMITTER)
def rollback(project: Project, model: Name, body: Body, context: Context, principal: RequestPrincipal) -> ModelForm:
    """Restores the traffic of a model as it was before its last change. If an etag is sent, it must be the model's."""
    request = parse_document(RollbackRequest, document=body, source="request")

    def check(record: ModelRecord) -> None:
        check_etag(request.etag, current=model_etag(record), what=f"model {record.name}")

    restored = context.models.rollback(project=project, model=model, check=check, changed_by=principal.label)
    return model_of(restored, context)


@router.delete("/models/{model}")
@requires_scope(Scope.SUBMITTER)
def delete_model(project: Project, model: Name, context: Context) -> OperationForm:
    """``projects.models.delete``. The model must have no versions."""
    return operation_of(context.models.delete_model(project=project, name=model), context)


@router.post("/models/{model}/versions")
@requires_scope(Scope.SUBMITTER)
def create_version(
    project: Project, model: Name, body: Body, context: Context, principal: RequestPrincipal
) -> OperationForm:
    """``projects.models.versions.create``. Returns an operation; the prediction server is started afterwards."""
    request = parse_version(body)
    return operation_of(
        record_version(request, project=project, model=model, context=context, principal=principal), context
    )


def record_version(
    request: VersionRequest,
    *,
    project: str,
    model: str,
    context: ServiceContext,
    principal: Principal,
    uploaded_model: str | None = None,
    split_when_ready: Mapping[str, int] | None = None,
) -> OperationRecord:
    """Checks a request for a version, and records the version.

    Args:
        request: the request.
        project: the project.
        model: the name of the model.
        context: the parts of the service.
        principal: the sender of the request.
        uploaded_model: the name of the uploaded model that it is deployed from; None if from none.
        split_when_ready: the percents of the model's versions once it is READY, by name; None if they stay as they are.

    Raises:
        NotFoundError: If there is no such model, or no version that `split_when_ready` names.
        WrongStateError: If such a version is not READY.
        ConflictError: If the model has a version of this name.
        ImageError: If the name of the container's image is not valid.
        InvalidInputError: If a URL is not allowed, if no node could ever provide the machine, or if containers cannot
            be run.
    """
    bucket = context.settings.bucket
    for what, url in request.urls():
        check_shared_url(url, what=what)
        is_code = what.startswith("packageUris")
        check_location(url, what=what, principal=principal, project=project, bucket=bucket, holds_code=is_code)
    region = context.models.get_model(project=project, name=model).region
    container = version_container(request.container, request.routes, model=model, version=request.name)
    if container is not None:
        check_container(container, settings=context.settings)
    gang = _check_machine(request, project=project, region=region, context=context)
    return context.models.create_version(
        project=project,
        model=model,
        name=request.name,
        description=request.description,
        labels=request.labels,
        deployment_uri=request.deployment_uri,
        package_uris=request.package_uris,
        python_module=request.lockstep.python_module,
        prediction_class=request.prediction_class,
        container=container,
        python_version=request.python_version,
        framework=request.requested_framework,
        machine_type=request.machine_type,
        accelerator=request.accelerator_config,
        num_servers=1 if request.manual_scaling is None else request.manual_scaling.nodes,
        scaling=scaling_policy(
            request.auto_scaling,
            own=request.lockstep.auto_scaling,
            has_manual=request.manual_scaling is not None,
            gang=gang,
            simulates_gpus=is_simulated(gang.replicas[0], gang=gang, cluster=context.cluster),
        ),
        request_logging=_request_logging(
            request.lockstep.request_logging, project=project, principal=principal, context=context
        ),
        batching=requested_batching(request.lockstep.batching),
        uploaded_model=uploaded_model,
        split_when_ready=split_when_ready,
    )


def _request_logging(
    asked: OwnRequestLogging | None, *, project: str, principal: Principal, context: ServiceContext
) -> RequestLogging | None:
    """Returns which requests are written to a bucket, and where. Rejects a folder that they may not be written to."""
    if asked is None:
        return None
    url = request_log_folder(
        asked.uri,
        what="lockstep.requestLogging.uri",
        principal=principal,
        project=project,
        bucket=context.settings.bucket,
    )
    return RequestLogging(sampling=asked.sampling_percentage, url=url)


def _check_machine(request: VersionRequest, *, project: str, region: str | None, context: ServiceContext) -> Gang:
    """Returns a server's machine. Rejects one that does not exist, or that no node could ever provide."""
    context.catalogue.machine_type(request.machine_type, what="machineType")
    machine = server_input(machine_type=request.machine_type, accelerator=request.accelerator_config, region=region)
    asked = parse_training_input({"trainingInput": machine}, source="request")
    try:
        gang = resolve(asked, catalogue=context.catalogue)
    except ConfigError as error:
        what = error.what.removeprefix("trainingInput.masterConfig.")
        raise ConfigError(what, received=error.received, allowed=error.allowed, action=error.action) from None
    never = context.controller.schedule.why_unplaceable(project=project, gang=gang, region=region)
    if never is not None:
        raise InvalidInputError(
            f"machineType: no prediction server could ever run: {never}", received=request.machine_type
        )
    return gang


@router.get("/models/{model}/versions")
@requires_scope(Scope.VIEWER)
def list_versions(
    project: Project,
    model: Name,
    context: Context,
    filter_text: Filter = "",
    page_size: PageSize = 0,
    page_token: PageToken = "",
) -> VersionListForm:
    """``projects.models.versions.list``, the newest first."""
    default = context.models.get_model(project=project, name=model).default_version
    predicate = parse_version_filter(filter_text)

    def resource(version: VersionRecord) -> VersionForm:
        return version_resource(version, is_default=version.name == default)

    return list_answer(
        "versions",
        read=partial(context.models.page_versions, project=project, model=model),
        holds=(lambda version: predicate({"isDefault": False, **resource(version)})) if filter_text else None,
        position=lambda version: (version.create_time_s, version.name),
        show=lambda versions: [resource(version) for version in versions],
        size=page_size,
        token=page_token,
    )


@router.get("/models/{model}/versions/{version}")
@requires_scope(Scope.VIEWER)
def get_version(project: Project, model: Name, version: Name, context: Context) -> VersionForm:
    """``projects.models.versions.get``."""
    return version_of(context.models.get_version(project=project, model=model, name=version), context)


@router.patch("/models/{model}/versions/{version}")
@requires_scope(Scope.SUBMITTER)
def patch_version(
    project: Project,
    model: Name,
    version: Name,
    body: Body,
    context: Context,
    principal: RequestPrincipal,
    update_mask: UpdateMask = "",
) -> OperationForm:
    """``projects.models.versions.patch``. If an etag is sent, it must still be the version's.

    Returns an operation, which is done when there are as many prediction servers as asked for.
    """
    patch = parse_version_patch(body, update_mask=update_mask)
    logging = _request_logging(patch.request_logging, project=project, principal=principal, context=context)

    def change(record: VersionRecord) -> Mapping[str, Any]:
        return {**patch.change_version(record), **({} if logging is None else {"request_logging": logging})}

    operation = context.models.patch_version(project=project, model=model, name=version, change=change)
    return operation_of(operation, context)


@router.post("/models/{model}/versions/{version}:setDefault")
@requires_scope(Scope.SUBMITTER)
def set_default(
    project: Project, model: Name, version: Name, context: Context, principal: RequestPrincipal
) -> VersionForm:
    """``projects.models.versions.setDefault``, which gives the version all traffic."""
    record = context.models.set_default(project=project, model=model, name=version, changed_by=principal.label)
    return version_resource(record, is_default=True)


@router.delete("/models/{model}/versions/{version}")
@requires_scope(Scope.SUBMITTER)
def delete_version(
    project: Project, model: Name, version: Name, context: Context, principal: RequestPrincipal
) -> OperationForm:
    """``projects.models.versions.delete``. Returns an operation; the prediction server is ended afterwards."""
    operation = context.models.begin_delete_version(
        project=project, model=model, name=version, deleted_by=principal.label
    )
    return operation_of(operation, context)
