"""Translates a model that is deployed in Vertex AI's form into a version in the contract's form, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lockstep.containers import check_reference
from lockstep.errors import ConfigError, InvalidInputError
from lockstep.jobs.input.custom_jobs import MACHINE_TYPES
from lockstep.jobs.input.spec import with_reader_names
from lockstep.service.api.forms import DedicatedResourcesForm, MachineSpecForm
from lockstep.service.api.prediction.containers import check_distinct
from lockstep.service.api.vertex.requests import (
    AutomaticResources,
    ContainerSpec,
    DedicatedResources,
    DeployedModel,
    VertexModel,
)
from lockstep.service.store import UploadedModelRecord, VersionRecord

CPU: Final = "aiplatform.googleapis.com/prediction/online/cpu/utilization"
GPU: Final = "aiplatform.googleapis.com/prediction/online/accelerator/duty_cycle"
_METRICS: Final = {CPU: "CPU_USAGE", GPU: "GPU_DUTY_CYCLE"}
_RESOURCES: Final = "deployedModel.dedicatedResources"
_NAMES: Final = {
    "lockstep.trafficSplit": "trafficSplit",
    "machineType": f"{_RESOURCES}.machineSpec.machineType",
    "acceleratorConfig": f"{_RESOURCES}.machineSpec.acceleratorType",
    "acceleratorConfig.type": f"{_RESOURCES}.machineSpec.acceleratorType",
    "acceleratorConfig.count": f"{_RESOURCES}.machineSpec.acceleratorCount",
    "autoScaling.maxNodes": f"{_RESOURCES}.maxReplicaCount",
    "autoScaling.minNodes": f"{_RESOURCES}.minReplicaCount",
    "autoScaling.metrics": f"{_RESOURCES}.autoscalingMetricSpecs",
    "manualScaling.nodes": f"{_RESOURCES}.minReplicaCount",
    "deploymentUri": "artifactUri of the uploaded model",
    "container.image": "containerSpec.imageUri of the uploaded model",
}
"""Vertex AI's names of the fields of a version."""
_CONTAINER: Final = ("command", "args", "env", "ports")
"""The fields of a container that have the same names in both forms."""


def version_document(
    deployed: DeployedModel, *, endpoint: str, name: str, model: UploadedModelRecord
) -> dict[str, Any]:
    """Returns the version, in the contract's JSON, that a model is deployed as.

    Args:
        deployed: the request.
        endpoint: the name of the endpoint.
        name: the name of the version.
        model: the uploaded model.

    Raises:
        ConfigError: If the resources are missing, given twice, or contradict each other.
    """
    dedicated, automatic = deployed.dedicated_resources, deployed.automatic_resources
    resources = dedicated or automatic
    if resources is None or (dedicated and automatic):
        raise ConfigError(
            "deployedModel: it needs either dedicatedResources or automaticResources",
            received="both" if resources else None,
        )
    document: dict[str, Any] = {"name": name, **_scaling(resources), **_server(model, endpoint=endpoint, name=name)}
    if dedicated is not None:
        machine = dedicated.machine_spec
        document["machineType"] = MACHINE_TYPES.get(machine.machine_type, machine.machine_type)
        if machine.accelerator is not None:
            document["acceleratorConfig"] = {"count": machine.accelerator_count, "type": machine.accelerator.value}
    return document


def check_server(model: VertexModel) -> None:
    """Checks that an uploaded model has what its server needs.

    Raises:
        ConfigError: If there are no files for a server that needs some, or if a container's variable is given twice.
        ImageError: If the name of the image is not valid.
    """
    spec = model.container_spec
    is_container = spec is not None and not spec.is_for_keras
    if not model.artifact_uri and not is_container:
        raise ConfigError("request: model.artifactUri is missing", allowed="the folder with the model's .keras file")
    if spec is not None and is_container:
        check_reference(spec.image_uri, what="model.containerSpec.imageUri")
        check_distinct(spec.env, what="model.containerSpec.env")


def _server(model: UploadedModelRecord, *, endpoint: str, name: str) -> dict[str, Any]:
    """Returns the fields of a version that say what serves an uploaded model."""
    files = {"deploymentUri": model.artifact_uri} if model.artifact_uri else {}
    spec = None if model.container_spec is None else ContainerSpec.model_validate(model.container_spec)
    if spec is None or spec.is_for_keras:
        return files
    given, route = spec.to_json(), f"/v1/endpoints/{endpoint}/deployedModels/{name}"
    container = {"image": spec.image_uri, **{key: given[key] for key in _CONTAINER if key in given}}
    routes = {"predict": spec.predict_route or f"{route}:predict", "health": spec.health_route or route}
    return {**files, "container": container, "routes": routes}


def _scaling(resources: DedicatedResources | AutomaticResources) -> dict[str, Any]:
    least = resources.min_replica_count
    most = max(least, 1) if resources.max_replica_count is None else resources.max_replica_count
    if most < least:
        raise ConfigError("maxReplicaCount", received=most, allowed=f"minReplicaCount, {least}, or more")
    specs = resources.autoscaling_metric_specs if isinstance(resources, DedicatedResources) else ()
    if least == most and not specs:
        return {"manualScaling": {"nodes": least}}
    metrics: list[dict[str, Any]] = []
    for index, spec in enumerate(specs):
        if spec.metric_name not in _METRICS:
            what = f"{_RESOURCES}.autoscalingMetricSpecs.{index}.metricName"
            raise ConfigError(what, received=spec.metric_name, allowed=tuple(_METRICS))
        metrics.append({"name": _METRICS[spec.metric_name], "target": spec.target})
    scaling = {"minNodes": least, "maxNodes": most}
    return {"autoScaling": {**scaling, "metrics": metrics} if metrics else scaling}


def with_vertex_names(error: InvalidInputError) -> InvalidInputError:
    """Returns an error about a version as one of the same class with Vertex AI's names of its fields."""
    return type(error)(
        with_reader_names(error.what.removeprefix("request: "), names=_NAMES),
        received=error.received,
        allowed=error.allowed,
        action=error.action,
    )


def dedicated_resources(version: VersionRecord) -> DedicatedResourcesForm:
    """Returns the machines of a version in Vertex AI's form."""
    machine: MachineSpecForm = {"machineType": version.machine_type}
    if version.accelerator is not None:
        machine["acceleratorType"] = version.accelerator.type.value
        machine["acceleratorCount"] = version.accelerator.count
    policy = version.scaling
    if policy is None:
        count = version.num_servers
        return {"machineSpec": machine, "minReplicaCount": count, "maxReplicaCount": count}
    targets: Mapping[str, int | None] = {CPU: policy.cpu_percent, GPU: policy.gpu_percent}
    return {
        "machineSpec": machine,
        "minReplicaCount": policy.min_servers,
        "maxReplicaCount": policy.max_servers,
        "autoscalingMetricSpecs": [
            {"metricName": name, "target": target} for name, target in targets.items() if target is not None
        ],
    }
