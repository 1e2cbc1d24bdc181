"""The forms of models, versions, operations and predictions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NotRequired

from pydantic import with_config
from typing_extensions import TypedDict

from lockstep.service.api.forms.answers import STRICT
from lockstep.service.store import VersionState


@with_config(STRICT)
class ScalingForm(TypedDict):
    """``GoogleCloudMlV1__ManualScaling``."""

    nodes: int


@with_config(STRICT)
class AcceleratorConfigForm(TypedDict):
    """``GoogleCloudMlV1__AcceleratorConfig``."""

    count: str
    type: str


@with_config(STRICT)
class MetricSpecForm(TypedDict):
    """``GoogleCloudMlV1__MetricSpec``."""

    name: str
    target: int


@with_config(STRICT)
class AutoScalingForm(TypedDict):
    """``GoogleCloudMlV1__AutoScaling``."""

    minNodes: int
    maxNodes: int
    metrics: list[MetricSpecForm]


@with_config(STRICT)
class OwnAutoScalingForm(TypedDict):
    """Lockstep's own fields of automatic scaling."""

    requestsPerServer: float
    idleTimeout: str
    wakeTimeout: str
    stabilizationWindow: str


@with_config(STRICT)
class RequestLoggingForm(TypedDict):
    """Which requests are written to a bucket."""

    samplingPercentage: float
    uri: str


@with_config(STRICT)
class BatchingForm(TypedDict):
    """How each prediction server batches requests."""

    maxBatchSize: int
    maxLatency: str


@with_config(STRICT)
class OwnVersionForm(TypedDict):
    """Lockstep's own fields of a version, which are not in the contract."""

    autoScaling: NotRequired[OwnAutoScalingForm]
    batching: NotRequired[BatchingForm]
    numServers: NotRequired[int]
    numReadyServers: NotRequired[int]
    pythonModule: NotRequired[str]
    requestLogging: NotRequired[RequestLoggingForm]
    waitingFor: NotRequired[str]


@with_config(STRICT)
class ContainerPortForm(TypedDict):
    """``GoogleCloudMlV1__ContainerPort``."""

    containerPort: int


@with_config(STRICT)
class EnvVarForm(TypedDict):
    """``GoogleCloudMlV1__EnvVar``."""

    name: str
    value: str


@with_config(STRICT)
class ContainerForm(TypedDict):
    """``GoogleCloudMlV1__ContainerSpec``."""

    image: str
    ports: list[ContainerPortForm]
    command: NotRequired[list[str]]
    args: NotRequired[list[str]]
    env: NotRequired[list[EnvVarForm]]


@with_config(STRICT)
class RoutesForm(TypedDict):
    """``GoogleCloudMlV1__RouteMap``."""

    predict: str
    health: str


@with_config(STRICT)
class VersionForm(TypedDict):
    """``GoogleCloudMlV1__Version``."""

    name: str
    deploymentUri: str
    packageUris: NotRequired[list[str]]
    predictionClass: NotRequired[str]
    container: NotRequired[ContainerForm]
    routes: NotRequired[RoutesForm]
    createTime: str
    machineType: str
    state: VersionState
    etag: str
    acceleratorConfig: NotRequired[AcceleratorConfigForm]
    framework: NotRequired[str]
    pythonVersion: NotRequired[str]
    lastUseTime: NotRequired[str]
    manualScaling: NotRequired[ScalingForm]
    autoScaling: NotRequired[AutoScalingForm]
    description: NotRequired[str]
    labels: NotRequired[dict[str, str]]
    errorMessage: NotRequired[str]
    isDefault: NotRequired[bool]
    lockstep: NotRequired[OwnVersionForm]


@with_config(STRICT)
class VersionListForm(TypedDict):
    """A model's versions."""

    versions: list[VersionForm]
    nextPageToken: NotRequired[str]


@with_config(STRICT)
class TrafficChangeForm(TypedDict):
    """A change of a model's traffic."""

    time: str
    changedBy: str
    trafficSplit: dict[str, int]


@with_config(STRICT)
class OwnModelForm(TypedDict):
    """Lockstep's own fields of a model, which are not in the contract."""

    trafficSplit: NotRequired[dict[str, int]]
    maxVersions: NotRequired[int]
    trafficChanges: NotRequired[list[TrafficChangeForm]]


@with_config(STRICT)
class ModelForm(TypedDict):
    """``GoogleCloudMlV1__Model``."""

    name: str
    onlinePredictionConsoleLogging: bool
    etag: str
    regions: NotRequired[list[str]]
    description: NotRequired[str]
    labels: NotRequired[dict[str, str]]
    defaultVersion: NotRequired[VersionForm]
    lockstep: NotRequired[OwnModelForm]


@with_config(STRICT)
class ModelListForm(TypedDict):
    """A project's models."""

    models: list[ModelForm]
    nextPageToken: NotRequired[str]


OperationMetadataForm = TypedDict(
    "OperationMetadataForm",
    {
        "@type": str,
        "operationType": str,
        "createTime": str,
        "startTime": str,
        "modelName": str,
        "version": NotRequired[VersionForm],
        "labels": NotRequired[dict[str, str]],
        "endTime": NotRequired[str],
        "isCancellationRequested": NotRequired[bool],
    },
)
"""``GoogleCloudMlV1__OperationMetadata``."""


@with_config(STRICT)
class OperationErrorForm(TypedDict):
    """The error of an operation that failed or was cancelled."""

    code: int
    message: str | None


@with_config(STRICT)
class OperationForm(TypedDict):
    """``GoogleLongrunning__Operation``."""

    name: str
    metadata: OperationMetadataForm
    done: NotRequired[bool]
    error: NotRequired[OperationErrorForm]
    response: NotRequired[Mapping[str, Any]]


@with_config(STRICT)
class OperationListForm(TypedDict):
    """A page of operations."""

    operations: list[OperationForm]
    nextPageToken: NotRequired[str]


class PredictionsForm(TypedDict):
    """The predictions of a model for the instances, in any JSON form."""

    predictions: list[Any]
