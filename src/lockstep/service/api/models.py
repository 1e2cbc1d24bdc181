"""``projects.models``, ``projects.models.versions`` and ``projects.operations`` of the contract."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar, final

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from lockstep.errors import ConfigError, InvalidInputError, NotFoundError
from lockstep.jobs import Labels
from lockstep.service.api.requests import Body, Context, Name, Project
from lockstep.service.api.resources import model_resource, operation_resource, version_resource
from lockstep.service.store import ModelRecord
from lockstep.storage import check_shared_url

DEFAULT_MACHINE_TYPE = "n1-standard-4"

router = APIRouter()

ResourceName = Annotated[str, Field(pattern=r"^[a-zA-Z][a-zA-Z0-9_]{0,127}$")]


class AbstractRequest(BaseModel):
    """A request's body: camelCase, unknown keys refused."""

    model_config = ConfigDict(alias_generator=to_camel, extra="forbid", frozen=True)


@final
class _ModelRequest(AbstractRequest):
    name: ResourceName
    description: str = ""
    labels: Labels = Field(default_factory=dict)
    regions: list[str] = Field(default_factory=list)


@final
class _ManualScaling(AbstractRequest):
    nodes: Literal[1] = 1


@final
class _VersionRequest(AbstractRequest):
    name: ResourceName
    deployment_uri: str = Field(min_length=1)
    description: str = ""
    labels: Labels = Field(default_factory=dict)
    machine_type: str = DEFAULT_MACHINE_TYPE
    framework: Literal["FRAMEWORK_UNSPECIFIED", "TENSORFLOW"] = "FRAMEWORK_UNSPECIFIED"
    manual_scaling: _ManualScaling = _ManualScaling()


Request = TypeVar("Request", bound=AbstractRequest)


def _parse(kind: type[Request], body: dict[str, Any]) -> Request:
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            allowed = [field.alias or name for name, field in kind.model_fields.items()]
            raise ConfigError(f"{path}: this version does not take it", allowed=allowed) from None
        received = None if first["type"] == "missing" else first["input"]
        raise ConfigError(f"{path}: {first['msg']}", received=received) from None


def _model(model: ModelRecord, context: Context) -> dict[str, Any]:
    default = None
    if model.default_version is not None:
        default = context.models.get_version(project=model.project, model=model.name, name=model.default_version)
    return model_resource(model, default=default)


@router.post("/models")
def create_model(project: Project, body: Body, context: Context) -> dict[str, Any]:
    """``projects.models.create``."""
    request = _parse(_ModelRequest, body)
    model = context.models.create_model(
        project=project, name=request.name, description=request.description, labels=request.labels
    )
    return _model(model, context)


@router.get("/models")
def list_models(project: Project, context: Context) -> dict[str, Any]:
    """``projects.models.list``."""
    return {"models": [_model(model, context) for model in context.models.list_models(project=project)]}


@router.get("/models/{model}")
def get_model(project: Project, model: Name, context: Context) -> dict[str, Any]:
    """``projects.models.get``."""
    return _model(context.models.get_model(project=project, name=model), context)


@router.delete("/models/{model}")
def delete_model(project: Project, model: Name, context: Context) -> dict[str, Any]:
    """``projects.models.delete``: of a model without versions."""
    return operation_resource(context.models.delete_model(project=project, name=model))


@router.post("/models/{model}/versions")
def create_version(project: Project, model: Name, body: Body, context: Context) -> dict[str, Any]:
    """``projects.models.versions.create``: answers with an operation; the controller starts the server."""
    request = _parse(_VersionRequest, body)
    check_shared_url(request.deployment_uri, what="deploymentUri")
    context.catalogue.machine_type(request.machine_type, what="machineType")
    operation = context.models.create_version(
        project=project,
        model=model,
        name=request.name,
        description=request.description,
        labels=request.labels,
        deployment_uri=request.deployment_uri,
        machine_type=request.machine_type,
    )
    version = context.models.get_version(project=project, model=model, name=request.name)
    return operation_resource(operation, version=version)


@router.get("/models/{model}/versions")
def list_versions(project: Project, model: Name, context: Context) -> dict[str, Any]:
    """``projects.models.versions.list``."""
    default = context.models.get_model(project=project, name=model).default_version
    versions = context.models.list_versions(project=project, model=model)
    return {"versions": [version_resource(version, is_default=version.name == default) for version in versions]}


@router.get("/models/{model}/versions/{version}")
def get_version(project: Project, model: Name, version: Name, context: Context) -> dict[str, Any]:
    """``projects.models.versions.get``."""
    default = context.models.get_model(project=project, name=model).default_version
    record = context.models.get_version(project=project, model=model, name=version)
    return version_resource(record, is_default=record.name == default)


@router.post("/models/{model}/versions/{version}:setDefault")
def set_default(project: Project, model: Name, version: Name, context: Context) -> dict[str, Any]:
    """``projects.models.versions.setDefault``."""
    return version_resource(context.models.set_default(project=project, model=model, name=version), is_default=True)


@router.delete("/models/{model}/versions/{version}")
def delete_version(project: Project, model: Name, version: Name, context: Context) -> dict[str, Any]:
    """``projects.models.versions.delete``: answers with an operation; the controller ends the server."""
    return operation_resource(context.models.begin_delete_version(project=project, model=model, name=version))


@router.get("/operations/{operation}")
def get_operation(project: Project, operation: str, context: Context) -> dict[str, Any]:
    """``projects.operations.get``."""
    if not operation.replace("_", "").isalnum():
        raise InvalidInputError("operation", received=operation, allowed="a name that this service gave")
    record = context.models.get_operation(project=project, name=operation)
    version = None
    if record.version is not None and record.kind == "CREATE_VERSION":
        try:
            version = context.models.get_version(project=project, model=record.model, name=record.version)
        except NotFoundError:
            version = None  # deleted since
    return operation_resource(record, version=version)
