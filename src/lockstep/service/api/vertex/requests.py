"""Requests in Vertex AI's form: uploaded models, endpoints, and models to deploy at them.

The documents follow the public discovery document ``aiplatform.v1.json`` and keep its names. A field that Lockstep does
not honour is refused by its name, if it asks for something.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeVar, final

from pydantic import AfterValidator, Field

from lockstep.errors import ConfigError, UnimplementedError
from lockstep.jobs.input.custom_jobs import MachineSpec, job_id_of
from lockstep.jobs.parsing.fields import AbstractDocument, Int32, JobId, Labels, Text, rule_error
from lockstep.jobs.parsing.rules import parse_document
from lockstep.service.api.prediction.containers import MAX_VARIABLES, ContainerPort, EnvVar, check_route
from lockstep.service.control.schedule import MAX_SERVERS
from lockstep.service.store import WHOLE

NEW: Final = "0"
"""The model that is being deployed, in the traffic split of its request."""

_KERAS_IMAGE: Final = re.compile(r"[a-z0-9.-]+/(vertex-ai|cloud-aiplatform)/prediction/tf2-(cpu|gpu)\.[a-z0-9.:_-]+")


def _check_name(value: str) -> str:
    if not job_id_of(value):
        raise rule_error(allowed="1 to 128 characters that begin with a letter: it becomes the name")
    return value


DisplayName = Annotated[Text, AfterValidator(_check_name)]
"""A display name, which becomes the name of the resource: see `name_of`."""


def name_of(display_name: str) -> str:
    """Returns the name of a resource with a display name: it has "_" for each character that no name has."""
    return job_id_of(display_name)


@final
class ContainerSpec(AbstractDocument):
    """``GoogleCloudAiplatformV1ModelContainerSpec``.

    Google's images for TensorFlow 2 stand for the server that all Keras models have here. Any other image is run.

    Attributes:
        image_uri: the container image.
        command: the command that replaces the image's entry point.
        args: the arguments of the entry point.
        env: the environment variables.
        ports: the port of the server; 8080 without one.
        predict_route: the path that takes instances.
        health_route: the path that answers when the server is healthy.
    """

    image_uri: Text
    command: tuple[Text, ...] = ()
    args: tuple[Text, ...] = ()
    env: tuple[EnvVar, ...] = Field(default=(), max_length=MAX_VARIABLES)
    ports: tuple[ContainerPort, ...] = Field(default=(), max_length=1)
    predict_route: Annotated[Text, AfterValidator(check_route)] | None = None
    health_route: Annotated[Text, AfterValidator(check_route)] | None = None
    grpc_ports: object = None
    invoke_route_prefix: object = None
    deployment_timeout: object = None
    shared_memory_size_mb: object = None
    startup_probe: object = None
    health_probe: object = None
    liveness_probe: object = None

    @property
    def is_for_keras(self) -> bool:
        """Whether the image is Google's server of Keras models, for which Lockstep's own stands."""
        return _KERAS_IMAGE.fullmatch(self.image_uri) is not None


@final
class VertexModel(AbstractDocument):
    """``GoogleCloudAiplatformV1Model``, as a client may send it.

    Attributes:
        display_name: the display name.
        description: the description.
        labels: the labels.
        artifact_uri: the bucket URL of the folder with the ``.keras`` file. For a container, it may hold any files,
            or be "".
        container_spec: the server of the model.
        version_aliases: the aliases of its only version.
    """

    display_name: DisplayName
    description: Text = ""
    labels: Labels = Field(default_factory=dict)
    artifact_uri: Text = ""
    container_spec: ContainerSpec | None = None
    version_aliases: tuple[Literal["default"], ...] = ()

    encryption_spec: object = None
    explanation_spec: object = None
    predict_schemata: object = None
    metadata: object = None
    metadata_schema_uri: object = None
    pipeline_job: object = None
    version_description: object = None
    base_model_source: object = None
    default_checkpoint_id: object = None
    data_stats: object = None

    name: object = None
    etag: object = None


@final
class UploadRequest(AbstractDocument):
    """``GoogleCloudAiplatformV1UploadModelRequest``.

    Attributes:
        model: the model.
        model_id: its name; by default that of its display name.
    """

    model: VertexModel
    model_id: JobId | None = None
    parent_model: object = None
    service_account: object = None

    @property
    def name(self) -> str:
        """The name of the model."""
        return self.model_id or name_of(self.model.display_name)


@final
class EndpointRequest(AbstractDocument):
    """``GoogleCloudAiplatformV1Endpoint``, as a client may send it.

    Attributes:
        display_name: the display name.
        description: the description.
        labels: the labels.
    """

    display_name: DisplayName
    description: Text = ""
    labels: Labels = Field(default_factory=dict)

    encryption_spec: object = None
    network: object = None
    enable_private_service_connect: object = None
    private_service_connect_config: object = None
    dedicated_endpoint_enabled: object = None
    predict_request_response_logging_config: object = None
    client_connection_config: object = None
    gen_ai_advanced_features_config: object = None
    gdc_config: object = None
    traffic_split: object = None

    name: object = None
    etag: object = None
    deployed_models: object = None
    create_time: object = None
    update_time: object = None


@final
class MetricSpec(AbstractDocument):
    """``GoogleCloudAiplatformV1AutoscalingMetricSpec``.

    Attributes:
        metric_name: the metric.
        target: the value that each replica should have, in percent.
    """

    metric_name: Text
    target: Int32 = 60
    monitored_resource_labels: object = None


@final
class AutomaticResources(AbstractDocument):
    """``GoogleCloudAiplatformV1AutomaticResources``: resources on the default machine type.

    Attributes:
        min_replica_count: the minimum number of replicas.
        max_replica_count: the maximum number of replicas; by default the minimum.
    """

    min_replica_count: Int32 = Field(default=1, ge=0, le=MAX_SERVERS)
    max_replica_count: Int32 | None = Field(default=None, ge=1, le=MAX_SERVERS)


@final
class DedicatedResources(AbstractDocument):
    """``GoogleCloudAiplatformV1DedicatedResources``.

    Attributes:
        machine_spec: the machine of each replica.
        min_replica_count: the minimum number of replicas.
        max_replica_count: the maximum number of replicas; by default the minimum.
        autoscaling_metric_specs: the metrics that the number of replicas follows.
    """

    machine_spec: MachineSpec
    min_replica_count: Int32 = Field(default=1, ge=0, le=MAX_SERVERS)
    max_replica_count: Int32 | None = Field(default=None, ge=1, le=MAX_SERVERS)
    autoscaling_metric_specs: tuple[MetricSpec, ...] = ()
    required_replica_count: object = None
    spot: object = None
    flex_start: object = None
    scale_to_zero_spec: object = None
    initial_replica_count: object = None


@final
class DeployedModel(AbstractDocument):
    """``GoogleCloudAiplatformV1DeployedModel``, as a client may send it.

    Attributes:
        model: the resource name of the uploaded model.
        id: the name of the version; by default that of the display name, with a number if there is such a version.
        display_name: the display name; by default that of the uploaded model.
        dedicated_resources: its machines.
        automatic_resources: its number of replicas, on the default machine type.
    """

    model: Text
    id: JobId | None = None
    display_name: DisplayName | None = None
    dedicated_resources: DedicatedResources | None = None
    automatic_resources: AutomaticResources | None = None

    shared_resources: object = None
    service_account: object = None
    explanation_spec: object = None
    disable_container_logging: object = None
    enable_access_logging: object = None
    faster_deployment_config: object = None
    gdc_connected_model: object = None
    checkpoint_id: object = None
    speculative_decoding_spec: object = None
    system_labels: object = None

    disable_explanations: object = None
    create_time: object = None
    status: object = None
    private_endpoints: object = None
    model_version_id: object = None


TrafficSplit = Annotated[dict[str, Int32], Field(max_length=MAX_SERVERS)]


@final
class DeployRequest(AbstractDocument):
    """``GoogleCloudAiplatformV1DeployModelRequest``.

    Attributes:
        deployed_model: the model to deploy.
        traffic_split: the traffic of each deployed model in percent, afterwards.
    """

    deployed_model: DeployedModel
    traffic_split: TrafficSplit = Field(default_factory=dict)


@final
class UndeployRequest(AbstractDocument):
    """``GoogleCloudAiplatformV1UndeployModelRequest``.

    Attributes:
        deployed_model_id: the name of the version.
        traffic_split: the traffic of each deployed model in percent, afterwards.
    """

    deployed_model_id: JobId
    traffic_split: TrafficSplit = Field(default_factory=dict)


_NO_SCHEMAS: Final = "a Keras model says itself what its inputs and outputs are"
_NO_NETWORK: Final = "endpoints are paths of this service, which has no networks of its own"
_NO_EXPLANATIONS: Final = "predictions are not explained"
_NO_ACCOUNT: Final = "prediction servers run without credentials of any account"
_NO_KEYS: Final = "the bucket encrypts its objects by itself"
_NO_PROBES: Final = "the health route is asked every second; a deployment has ten minutes to be ready"
_NOT_KERAS: Final = "the image is Vertex AI's server for TensorFlow 2, for which Lockstep's own stands"
_NO_GENERATION: Final = "prediction servers run Keras models, not Google's models"

UNSUPPORTED: Final[Mapping[type[AbstractDocument], Mapping[str, str]]] = {
    ContainerSpec: {
        "grpcPorts": "requests are sent over HTTP",
        "invokeRoutePrefix": "requests are sent to predictRoute",
        "sharedMemorySizeMb": "a container has half of its memory as shared memory",
        **dict.fromkeys(("deploymentTimeout", "startupProbe", "healthProbe", "livenessProbe"), _NO_PROBES),
    },
    VertexModel: {
        "encryptionSpec": _NO_KEYS,
        "explanationSpec": _NO_EXPLANATIONS,
        **dict.fromkeys(("predictSchemata", "metadata", "metadataSchemaUri"), _NO_SCHEMAS),
        "pipelineJob": "there are no pipelines",
        "versionDescription": "an uploaded model has one version",
        **dict.fromkeys(("baseModelSource", "defaultCheckpointId"), _NO_GENERATION),
        "dataStats": "there are no statistics of data",
    },
    UploadRequest: {
        "parentModel": "an uploaded model has one version; upload it under another name",
        "serviceAccount": _NO_ACCOUNT,
    },
    EndpointRequest: {
        "encryptionSpec": _NO_KEYS,
        **dict.fromkeys(
            (
                *("network", "enablePrivateServiceConnect", "privateServiceConnectConfig"),
                *("dedicatedEndpointEnabled", "gdcConfig"),
            ),
            _NO_NETWORK,
        ),
        "predictRequestResponseLoggingConfig": "there is no BigQuery to write requests and responses to",
        "clientConnectionConfig": "send the header X-Server-Timeout with a request",
        "genAiAdvancedFeaturesConfig": _NO_GENERATION,
        "trafficSplit": "a new endpoint has no deployed models",
    },
    MetricSpec: {"monitoredResourceLabels": "metrics are those of the replicas"},
    DedicatedResources: {
        "requiredReplicaCount": "a deployment is done when its first replica is ready",
        "spot": "machines are those of the cluster",
        "flexStart": "machines are those of the cluster",
        "scaleToZeroSpec": "set minReplicaCount to 0",
        "initialReplicaCount": "a deployment begins with the minimum number of replicas",
    },
    MachineSpec: dict.fromkeys(
        ("tpuTopology", "gpuPartitionSize", "reservationAffinity"), "machines are those of the catalogue"
    ),
    DeployedModel: {
        "sharedResources": "each deployed model has machines of its own",
        "serviceAccount": _NO_ACCOUNT,
        "explanationSpec": _NO_EXPLANATIONS,
        "disableContainerLogging": "what a prediction server prints is always kept",
        "enableAccessLogging": "prediction servers do not log each request",
        "fasterDeploymentConfig": "programs that were compiled once are kept anyway",
        **dict.fromkeys(
            ("gdcConnectedModel", "checkpointId", "speculativeDecodingSpec", "systemLabels"), _NO_GENERATION
        ),
    },
}
"""The fields of each document that Lockstep does not honour, with the reasons."""

Document = TypeVar("Document", bound=AbstractDocument)


def parse(kind: type[Document], body: Mapping[str, Any]) -> Document:
    """Parses a request.

    Raises:
        ConfigError: If the body has an unknown key or a wrong type, or breaks a rule.
        UnimplementedError: If it asks for what Lockstep does not have.
    """
    document = parse_document(kind, document=body, source="request")
    _check_supported(document, prefix="")
    return document


def _check_supported(document: AbstractDocument, *, prefix: str) -> None:
    reasons = UNSUPPORTED.get(type(document), {})
    for name, field in type(document).model_fields.items():
        key, value = field.alias or name, getattr(document, name)
        if key in reasons and value:  # false, 0 and empty ask for nothing
            raise UnimplementedError(f"{prefix}{key}: {reasons[key]}", action="remove it")
        for inner in value if isinstance(value, tuple) else (value,):
            if isinstance(inner, AbstractDocument):
                _check_supported(inner, prefix=f"{prefix}{key}.")
    if isinstance(document, ContainerSpec) and document.is_for_keras:
        for key in ("command", "args", "env", "ports", "predictRoute", "healthRoute"):
            if document.to_json().get(key):
                raise UnimplementedError(f"{prefix}{key}: {_NOT_KERAS}", action="remove it, or name your own image")


def check_split(split: Mapping[str, int], *, what: str = "trafficSplit") -> Mapping[str, int] | None:
    """Checks the percents of deployed models.

    Returns:
        The percents by the ids of the models, without those that get nothing; None for an empty split, which changes
        nothing.

    Raises:
        ConfigError: If one is negative, or the total is not 100.
    """
    if not split:
        return None
    if any(share < 0 for share in split.values()) or sum(split.values()) != WHOLE:
        raise ConfigError(what, received=dict(split), allowed=f"shares of {WHOLE} in total")
    return {name: share for name, share in split.items() if share}
