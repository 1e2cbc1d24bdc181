"""Converts records to Vertex AI's JSON resources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast, final

from lockstep.errors import NotFoundError
from lockstep.service.api.forms import (
    DeployedModelForm,
    EndpointForm,
    VertexContainerForm,
    VertexModelForm,
    VertexOperationForm,
)
from lockstep.service.api.prediction.waits import describe_wait
from lockstep.service.api.resources import model_etag, timestamp
from lockstep.service.api.vertex.deploying import dedicated_resources
from lockstep.service.context import ServiceContext
from lockstep.service.store import (
    ModelRecord,
    OperationRecord,
    UploadedModelRecord,
    VersionRecord,
    VersionState,
    split_of,
)

TYPE_PREFIX: Final = "type.googleapis.com/google.cloud.aiplatform.v1."
MODEL_VERSION: Final = "1"
"""The only version of an uploaded model."""
_OPERATIONS: Final[Mapping[str, str]] = {
    "CREATE_VERSION": "DeployModel",
    "DELETE_VERSION": "UndeployModel",
    "DELETE_MODEL": "Delete",
    "UPDATE_MODEL": "UpdateEndpoint",
    "UPDATE_VERSION": "MutateDeployedModel",
}
"""Vertex AI's names of the kinds of operations."""


@final
@dataclass(frozen=True, kw_only=True)
class Place:
    """A location of a project.

    Attributes:
        project: the project.
        location: the location, which is a region.
    """

    project: str
    location: str

    @property
    def parent(self) -> str:
        """The resource name of the location."""
        return f"projects/{self.project}/locations/{self.location}"

    def has(self, model: ModelRecord) -> bool:
        """Returns whether a model is in this location. A model without a region is in all locations."""
        return model.region in (None, self.location)


def endpoint_of(place: Place, name: str, context: ServiceContext) -> ModelRecord:
    """Returns the model that an endpoint is.

    Raises:
        NotFoundError: If there is no such endpoint in the location.
    """
    model = context.models.get_model(project=place.project, name=name)
    if not place.has(model):
        raise NotFoundError(f"project {place.project} has no endpoint {name!r} in {place.location}")
    return model


def endpoint_resource(model: ModelRecord, *, place: Place, context: ServiceContext) -> EndpointForm:
    """Returns a model as ``GoogleCloudAiplatformV1Endpoint``, with its versions as deployed models."""
    versions = context.models.list_versions(project=model.project, model=model.name)
    resource: EndpointForm = {
        "name": f"{place.parent}/endpoints/{model.name}",
        "displayName": model.name,
        "createTime": timestamp(model.create_time_s),
        "etag": model_etag(model),
        "deployedModels": [
            deployed_model(version, place=place, context=context)
            for version in versions
            if version.state is not VersionState.DELETING
        ],
        "trafficSplit": split_of(model.traffic),
    }
    if model.description:
        resource["description"] = model.description
    if model.labels:
        resource["labels"] = dict(model.labels)
    return resource


def deployed_model(version: VersionRecord, *, place: Place, context: ServiceContext) -> DeployedModelForm:
    """Returns a version as ``GoogleCloudAiplatformV1DeployedModel``. Its status says its state, and why."""
    servers = context.jobs.servers(version_uid=version.uid)
    reason = describe_wait(version, servers=servers, context=context) or version.error_message
    resource: DeployedModelForm = {
        "id": version.name,
        "displayName": version.name,
        "createTime": timestamp(version.create_time_s),
        "dedicatedResources": dedicated_resources(version),
        "status": {"message": f"{version.state}: {reason}" if reason else str(version.state)},
    }
    if version.uploaded_model is not None:
        resource["model"] = f"{place.parent}/models/{version.uploaded_model}"
        resource["modelVersionId"] = MODEL_VERSION
    return resource


def model_resource(
    model: UploadedModelRecord, *, place: Place, versions: Sequence[VersionRecord] = ()
) -> VertexModelForm:
    """Returns an uploaded model as ``GoogleCloudAiplatformV1Model``.

    Args:
        model: the uploaded model.
        place: the location.
        versions: the versions that it is deployed as.
    """
    created, updated = timestamp(model.create_time_s), timestamp(model.update_time_s)
    resource: VertexModelForm = {
        "name": f"{place.parent}/models/{model.name}",
        "displayName": model.name,
        "artifactUri": model.artifact_uri,
        "versionId": MODEL_VERSION,
        "versionAliases": ["default"],
        "createTime": created,
        "updateTime": updated,
        "versionCreateTime": created,
        "versionUpdateTime": updated,
        "supportedDeploymentResourcesTypes": ["DEDICATED_RESOURCES", "AUTOMATIC_RESOURCES"],
    }
    if model.container_spec is not None:
        resource["containerSpec"] = cast("VertexContainerForm", dict(model.container_spec))
    if model.description:
        resource["description"] = model.description
    if model.labels:
        resource["labels"] = dict(model.labels)
    if versions:
        resource["deployedModels"] = [
            {"endpoint": f"{place.parent}/endpoints/{version.model}", "deployedModelId": version.name}
            for version in versions
        ]
    return resource


def operation_resource(operation: OperationRecord, *, place: Place, context: ServiceContext) -> VertexOperationForm:
    """Returns a recorded operation as ``GoogleLongrunningOperation``."""
    kind = _OPERATIONS[operation.kind]
    end_s = operation.create_time_s if operation.end_time_s is None else operation.end_time_s
    resource: VertexOperationForm = {
        "name": f"{place.parent}/operations/{operation.name}",
        "metadata": _metadata(kind, create_time=timestamp(operation.create_time_s), update_time=timestamp(end_s)),
    }
    if operation.end_time_s is None:
        return resource
    resource["done"] = True
    if operation.error_code is not None:
        resource["error"] = {"code": operation.error_code, "message": operation.error_message}
    else:
        resource["response"] = _response(operation, place=place, context=context)
    return resource


def _response(operation: OperationRecord, *, place: Place, context: ServiceContext) -> Mapping[str, Any]:
    if operation.kind == "DELETE_MODEL":
        return {"@type": "type.googleapis.com/google.protobuf.Empty"}
    response: dict[str, Any] = {"@type": f"{TYPE_PREFIX}{_OPERATIONS[operation.kind]}Response"}
    if operation.kind in ("CREATE_VERSION", "UPDATE_VERSION") and operation.version is not None:
        try:
            version = context.models.get_version(project=place.project, model=operation.model, name=operation.version)
        except NotFoundError:  # it has been deleted since
            return response
        response["deployedModel"] = deployed_model(version, place=place, context=context)
    return response


def done_operation(
    kind: str, *, name: str, place: Place, time_s: float, response: Mapping[str, Any] | None
) -> VertexOperationForm:
    """Returns an operation that was done at once.

    Args:
        kind: Vertex AI's name of what was done, such as "UploadModel".
        name: the name of the operation.
        place: the location.
        time_s: when it was done, in seconds since 1970 UTC.
        response: its response, with its type; None for an empty one.
    """
    time = timestamp(time_s)
    return {
        "name": f"{place.parent}/operations/{name}",
        "metadata": _metadata(kind, create_time=time, update_time=time),
        "done": True,
        "response": response or {"@type": "type.googleapis.com/google.protobuf.Empty"},
    }


def _metadata(kind: str, *, create_time: str, update_time: str) -> Mapping[str, Any]:
    generic = {"createTime": create_time, "updateTime": update_time}
    return {"@type": f"{TYPE_PREFIX}{kind}OperationMetadata", "genericMetadata": generic}
