"""Translates ``mutateDeployedModel`` of Vertex AI into a change of a version in the contract's form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, final

from pydantic.alias_generators import to_camel

from lockstep.errors import InvalidInputError, UnimplementedError, WrongStateError
from lockstep.jobs.parsing.fields import AbstractDocument, JobId, Text
from lockstep.service.api.prediction.patches import parse_version_patch
from lockstep.service.store import VersionRecord

_LEAST: Final = "minReplicaCount"
_MOST: Final = "maxReplicaCount"
_NODES: Final = {_LEAST: "minNodes", _MOST: "maxNodes"}
_RESOURCES: Final = ("dedicatedResources", "automaticResources")
_ALLOWED: Final = tuple(f"{resources}.{count}" for resources in _RESOURCES for count in _NODES)


@final
class _Resources(AbstractDocument):
    min_replica_count: Any = None
    max_replica_count: Any = None
    machine_spec: object = None
    autoscaling_metric_specs: object = None
    required_replica_count: object = None
    spot: object = None


@final
class _MutatedModel(AbstractDocument):
    id: JobId
    dedicated_resources: _Resources | None = None
    automatic_resources: _Resources | None = None
    model: object = None
    model_version_id: object = None
    display_name: object = None
    create_time: object = None
    status: object = None


@final
class MutateRequest(AbstractDocument):
    """``GoogleCloudAiplatformV1MutateDeployedModelRequest``. Only the paths of the mask are read.

    Attributes:
        deployed_model: the id of the deployed model, and its new numbers of replicas.
        update_mask: the paths to change, separated by commas, in camelCase or in snake_case.
    """

    deployed_model: _MutatedModel
    update_mask: Text

    def counts(self) -> dict[str, Any]:
        """Returns the new numbers of replicas, by ``minReplicaCount`` and ``maxReplicaCount``.

        Raises:
            InvalidInputError: If the mask is empty, names a field that cannot change, or one without a value.
            UnimplementedError: If it names the metrics that the number of replicas follows.
        """
        counts: dict[str, Any] = {}
        for path in filter(None, self.update_mask.replace(" ", "").split(",")):
            named = ".".join(map(to_camel, path.split(".")))
            resources, _, count = named.partition(".")
            if resources in _RESOURCES and count == "autoscalingMetricSpecs":
                raise UnimplementedError(
                    f"updateMask: {named}: the metrics of a deployed model do not change",
                    action="deploy the model again, and undeploy this one",
                )
            if named not in _ALLOWED:
                raise InvalidInputError("updateMask", received=path, allowed=_ALLOWED)
            given = self.deployed_model
            holder = given.dedicated_resources if resources == _RESOURCES[0] else given.automatic_resources
            value = None if holder is None else (holder.min_replica_count, holder.max_replica_count)[count == _MOST]
            if value is None:
                raise InvalidInputError(f"request: deployedModel.{named} is missing", action="updateMask names it")
            counts[count] = value
        if not counts:
            raise InvalidInputError("updateMask: it names no field", allowed=_ALLOWED)
        return counts


def change_of(version: VersionRecord, counts: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the columns of a version to set, so that it has other numbers of replicas.

    Args:
        version: the version.
        counts: the numbers, as `MutateRequest.counts` returns them.

    Raises:
        ConfigError: If a number is not allowed.
        WrongStateError: If the version is not READY, or has a fixed number of replicas and would get a range.
    """
    if version.scaling is not None:
        document = {"autoScaling": {_NODES[count]: value for count, value in counts.items()}}
    else:
        fixed = {_LEAST: version.num_servers, _MOST: version.num_servers, **counts}
        if fixed[_LEAST] != fixed[_MOST]:
            raise WrongStateError(
                f"deployed model {version.name} has a fixed number of replicas, and does not scale",
                action=f"set {_LEAST} and {_MOST} to the same number, or deploy the model again",
            )
        document = {"manualScaling": {"nodes": fixed[_LEAST]}}
    ((field, values),) = document.items()
    mask = ",".join(f"{field}.{name}" for name in values)
    return parse_version_patch({"name": version.name, **document}, update_mask=mask).change_version(version)
