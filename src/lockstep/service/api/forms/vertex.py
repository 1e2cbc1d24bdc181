"""The forms of Vertex AI: models, endpoints with deployed models, and operations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NotRequired

from pydantic import with_config
from typing_extensions import TypedDict

from lockstep.service.api.forms.answers import STRICT
from lockstep.service.api.forms.prediction import ContainerPortForm, EnvVarForm, OperationErrorForm


@with_config(STRICT)
class VertexContainerForm(TypedDict):
    """``GoogleCloudAiplatformV1ModelContainerSpec``."""

    imageUri: str
    command: NotRequired[list[str]]
    args: NotRequired[list[str]]
    env: NotRequired[list[EnvVarForm]]
    ports: NotRequired[list[ContainerPortForm]]
    predictRoute: NotRequired[str]
    healthRoute: NotRequired[str]


@with_config(STRICT)
class DeployedModelRefForm(TypedDict):
    """``GoogleCloudAiplatformV1DeployedModelRef``."""

    endpoint: str
    deployedModelId: str


@with_config(STRICT)
class VertexModelForm(TypedDict):
    """``GoogleCloudAiplatformV1Model``."""

    name: str
    displayName: str
    artifactUri: str
    versionId: str
    versionAliases: list[str]
    createTime: str
    updateTime: str
    versionCreateTime: str
    versionUpdateTime: str
    supportedDeploymentResourcesTypes: list[str]
    containerSpec: NotRequired[VertexContainerForm]
    description: NotRequired[str]
    labels: NotRequired[dict[str, str]]
    deployedModels: NotRequired[list[DeployedModelRefForm]]


@with_config(STRICT)
class VertexModelListForm(TypedDict):
    """The uploaded models of a location."""

    models: list[VertexModelForm]
    nextPageToken: NotRequired[str]


@with_config(STRICT)
class MachineSpecForm(TypedDict):
    """``GoogleCloudAiplatformV1MachineSpec``."""

    machineType: str
    acceleratorType: NotRequired[str]
    acceleratorCount: NotRequired[int]


@with_config(STRICT)
class AutoscalingMetricSpecForm(TypedDict):
    """``GoogleCloudAiplatformV1AutoscalingMetricSpec``."""

    metricName: str
    target: int


@with_config(STRICT)
class DedicatedResourcesForm(TypedDict):
    """``GoogleCloudAiplatformV1DedicatedResources``."""

    machineSpec: MachineSpecForm
    minReplicaCount: int
    maxReplicaCount: int
    autoscalingMetricSpecs: NotRequired[list[AutoscalingMetricSpecForm]]


@with_config(STRICT)
class DeployedModelStatusForm(TypedDict):
    """``GoogleCloudAiplatformV1DeployedModelStatus``."""

    message: str


@with_config(STRICT)
class DeployedModelForm(TypedDict):
    """``GoogleCloudAiplatformV1DeployedModel``."""

    id: str
    displayName: str
    createTime: str
    dedicatedResources: DedicatedResourcesForm
    status: DeployedModelStatusForm
    model: NotRequired[str]
    modelVersionId: NotRequired[str]


@with_config(STRICT)
class EndpointForm(TypedDict):
    """``GoogleCloudAiplatformV1Endpoint``."""

    name: str
    displayName: str
    createTime: str
    etag: str
    deployedModels: list[DeployedModelForm]
    trafficSplit: dict[str, int]
    description: NotRequired[str]
    labels: NotRequired[dict[str, str]]


@with_config(STRICT)
class EndpointListForm(TypedDict):
    """The endpoints of a location."""

    endpoints: list[EndpointForm]
    nextPageToken: NotRequired[str]


@with_config(STRICT)
class VertexOperationForm(TypedDict):
    """``GoogleLongrunningOperation``, with metadata and a response of Vertex AI."""

    name: str
    metadata: Mapping[str, Any]
    done: NotRequired[bool]
    error: NotRequired[OperationErrorForm]
    response: NotRequired[Mapping[str, Any]]


@with_config(STRICT)
class VertexOperationListForm(TypedDict):
    """The operations of a location."""

    operations: list[VertexOperationForm]
    nextPageToken: NotRequired[str]
