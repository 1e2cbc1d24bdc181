"""``projects.models`` and ``projects.models.versions`` of the contract."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final, Literal, final

from pydantic import Field

from lockstep.errors import InvalidInputError
from lockstep.jobs.input.documents import parse_training_input
from lockstep.jobs.input.gangs import Gang, resolve
from lockstep.jobs.lists.filters import parse_model_filter, parse_version_filter
from lockstep.jobs.parsing.fields import Labels
from lockstep.jobs.security.access import Scope
from lockstep.service.api.access import RequestPrincipal, requires_scope
from lockstep.service.api.forms import ModelForm, ModelListForm, OperationForm, VersionForm, VersionListForm
from lockstep.service.api.pages import Filter, PageSize, PageToken, list_answer
from lockstep.service.api.prediction.scaling import AutoScaling, OwnAutoScaling, scaling_policy
from lockstep.service.api.prediction.waits import describe_wait
from lockstep.service.api.requests import AbstractRequest, Body, Context, Name, Project, parse_request
from lockstep.service.api.resources import model_resource, operation_resource, version_resource
from lockstep.service.api.routes import make_router
from lockstep.service.control.orders import is_simulated
from lockstep.service.control.schedule import MAX_SERVERS
from lockstep.service.prediction.servers import server_input
from lockstep.service.security.locations import check_location
from lockstep.service.store import ModelRecord, VersionRecord
from lockstep.storage import check_shared_url

DEFAULT_MACHINE_TYPE = "n1-standard-4"
MAX_PACKAGES: Final = 100

router = make_router()

ResourceName = Annotated[str, Field(pattern=r"^[a-zA-Z][a-zA-Z0-9_]{0,127}$")]


@final
class _ModelRequest(AbstractRequest):
    name: ResourceName
    description: str = ""
    labels: Labels = Field(default_factory=dict)
    regions: list[str] = Field(default_factory=list)


@final
class _ManualScaling(AbstractRequest):
    nodes: int = Field(default=1, ge=1, le=MAX_SERVERS)


@final
class _OwnVersion(AbstractRequest):
    python_module: str | None = Field(default=None, pattern=r"^[^\W\d]\w*(\.[^\W\d]\w*)*$", max_length=256)
    auto_scaling: OwnAutoScaling | None = None


@final
class _VersionRequest(AbstractRequest):
    name: ResourceName
    deployment_uri: str = Field(min_length=1)
    package_uris: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list[str], max_length=MAX_PACKAGES)
    lockstep: _OwnVersion = _OwnVersion()
    description: str = ""
    labels: Labels = Field(default_factory=dict)
    machine_type: str = DEFAULT_MACHINE_TYPE
    framework: Literal["FRAMEWORK_UNSPECIFIED", "TENSORFLOW"] = "FRAMEWORK_UNSPECIFIED"
    manual_scaling: _ManualScaling | None = None
    auto_scaling: AutoScaling | None = None


def _model(model: ModelRecord, context: Context) -> ModelForm:
    default = None
    if model.default_version is not None:
        default = context.models.get_version(project=model.project, model=model.name, name=model.default_version)
    return model_resource(model, default=default)


@router.post("/models")
@requires_scope(Scope.SUBMITTER)
def create_model(project: Project, body: Body, context: Context) -> ModelForm:
    """``projects.models.create``."""
    request = parse_request(_ModelRequest, body)
    model = context.models.create_model(
        project=project, name=request.name, description=request.description, labels=request.labels
    )
    return _model(model, context)


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
        holds=(lambda model: predicate(_model(model, context))) if filter_text else None,
        position=lambda model: (model.create_time_s, model.name),
        show=lambda models: [_model(model, context) for model in models],
        size=page_size,
        token=page_token,
    )


@router.get("/models/{model}")
@requires_scope(Scope.VIEWER)
def get_model(project: Project, model: Name, context: Context) -> ModelForm:
    """``projects.models.get``."""
    return _model(context.models.get_model(project=project, name=model), context)


@router.delete("/models/{model}")
@requires_scope(Scope.SUBMITTER)
def delete_model(project: Project, model: Name, context: Context) -> OperationForm:
    """``projects.models.delete``. The model must have no versions."""
    return operation_resource(context.models.delete_model(project=project, name=model))


@router.post("/models/{model}/versions")
@requires_scope(Scope.SUBMITTER)
def create_version(
    project: Project, model: Name, body: Body, context: Context, principal: RequestPrincipal
) -> OperationForm:
    """``projects.models.versions.create``. Returns an operation; the prediction server is started afterwards."""
    request = parse_request(_VersionRequest, body)
    check_shared_url(request.deployment_uri, what="deploymentUri")
    check_location(
        request.deployment_uri,
        what="deploymentUri",
        principal=principal,
        project=project,
        bucket=context.settings.bucket,
    )
    for index, url in enumerate(request.package_uris):
        what = f"packageUris.{index}"
        check_shared_url(url, what=what)
        bucket = context.settings.bucket
        check_location(url, what=what, principal=principal, project=project, bucket=bucket, holds_code=True)
    gang = _check_machine(request.machine_type, project=project, context=context)
    operation = context.models.create_version(
        project=project,
        model=model,
        name=request.name,
        description=request.description,
        labels=request.labels,
        deployment_uri=request.deployment_uri,
        package_uris=request.package_uris,
        python_module=request.lockstep.python_module,
        machine_type=request.machine_type,
        num_servers=(request.manual_scaling or _ManualScaling()).nodes,
        scaling=scaling_policy(
            request.auto_scaling,
            own=request.lockstep.auto_scaling,
            has_manual=request.manual_scaling is not None,
            gang=gang,
            simulates_gpus=is_simulated(gang.replicas[0], gang=gang, cluster=context.cluster),
        ),
    )
    version = context.models.get_version(project=project, model=model, name=request.name)
    return operation_resource(operation, version=version)


def _check_machine(machine_type: str, *, project: str, context: Context) -> Gang:
    """Returns a server's machine. Rejects a type that does not exist, or that no node could ever provide."""
    context.catalogue.machine_type(machine_type, what="machineType")
    document = {"trainingInput": server_input(machine_type=machine_type)}
    asked = parse_training_input(document, source="request")
    gang = resolve(asked, catalogue=context.catalogue)
    never = context.controller.schedule.why_unplaceable(project=project, gang=gang, region=asked.region)
    if never is not None:
        raise InvalidInputError(f"machineType: no prediction server could ever run: {never}", received=machine_type)
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
    default = context.models.get_model(project=project, name=model).default_version
    record = context.models.get_version(project=project, model=model, name=version)
    return version_resource(record, is_default=record.name == default, waiting_for=describe_wait(record, context))


@router.post("/models/{model}/versions/{version}:setDefault")
@requires_scope(Scope.SUBMITTER)
def set_default(project: Project, model: Name, version: Name, context: Context) -> VersionForm:
    """``projects.models.versions.setDefault``."""
    return version_resource(context.models.set_default(project=project, model=model, name=version), is_default=True)


@router.delete("/models/{model}/versions/{version}")
@requires_scope(Scope.SUBMITTER)
def delete_version(project: Project, model: Name, version: Name, context: Context) -> OperationForm:
    """``projects.models.versions.delete``. Returns an operation; the prediction server is ended afterwards."""
    return operation_resource(context.models.begin_delete_version(project=project, model=model, name=version))
