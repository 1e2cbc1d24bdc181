"""Generates the file for Ray's own cluster launcher from a cluster's definition, for ``ray up FILE``."""

from __future__ import annotations

from typing import Any, Final

from lockstep.clusters.machines.clouds import open_cloud
from lockstep.clusters.ray.base import ray_accelerator_name
from lockstep.clusters.ray.node_start import NODE_TYPE_LABEL
from lockstep.errors import EngineError
from lockstep.jobs.machines.catalogue import Catalogue
from lockstep.jobs.provisioning import ClusterDefinition, NodeType

HEAD: Final = "lockstep.head"
"""Name of the head's node type. Because of the dot, no node type of a definition can have the same name."""

TOKEN_FILE: Final = "~/.ray/auth_token"  # noqa: S105 - a path
"""The file from which Ray reads its token; ``ray get-auth-token --generate`` creates one."""

_START: Final = (
    "ulimit -n 65536; "
    f"RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH={TOKEN_FILE} RAY_worker_niceness=0 ray start --disable-usage-stats"
)
"""How a node starts. For the niceness, see `lockstep.clusters.ray.head`."""


def ray_cluster_file(definition: ClusterDefinition, *, catalogue: Catalogue, ssh_user: str) -> dict[str, Any]:
    """Returns the document of a cluster that Ray's launcher starts and Ray's autoscaler manages.

    Args:
        definition: the cluster's definition.
        catalogue: the catalogue of machine types.
        ssh_user: the user name with which Ray logs in to machines.

    Raises:
        ConfigError: a setting that the cloud needs is missing, or this version does not support the cloud.
        EngineError: the installed version of Ray rejects the generated document.
    """
    kinds = {HEAD: _head(definition, catalogue=catalogue), **definition.node_types}
    cloud = open_cloud(definition.model_copy(update={"node_types": kinds}), catalogue=catalogue)
    types: dict[str, Any] = {}
    for name, kind in kinds.items():
        is_head = name == HEAD
        types[name] = {
            "node_config": cloud.node_config(name),
            "resources": {"CPU": 0} if is_head else _resources(kind, catalogue=catalogue),
            "labels": {} if is_head else {NODE_TYPE_LABEL: name},
            "min_workers": kind.min_nodes,
            "max_workers": kind.max_nodes,
        }
    document: dict[str, Any] = {
        "cluster_name": definition.name,
        "max_workers": sum(kind.max_nodes for kind in definition.node_types.values()),
        "idle_timeout_minutes": definition.idle_timeout_s / 60,
        "provider": cloud.provider_config(),
        "auth": {"ssh_user": ssh_user},
        "head_node_type": HEAD,
        "available_node_types": types,
        "file_mounts": {TOKEN_FILE: TOKEN_FILE},
        "cluster_synced_files": [],
        "setup_commands": list(definition.setup_commands),
        "head_start_ray_commands": [
            "ray stop",
            f"{_START} --head --port=6379 --include-dashboard=false --autoscaling-config=~/ray_bootstrap_config.yaml",
        ],
        "worker_start_ray_commands": ["ray stop", f"{_START} --address=$RAY_HEAD_IP:6379"],
    }
    _check(document)
    return document


def _head(definition: ClusterDefinition, *, catalogue: Catalogue) -> NodeType:
    """Returns the head's node type: the smallest one of the definition, not as a spot machine."""
    smallest = min(
        definition.node_types.values(),
        key=lambda kind: (kind.accelerator(catalogue) is not None, catalogue.machine_type(kind.machine_type).vcpus),
    )
    return smallest.model_copy(update={"spot": False, "min_nodes": 0, "max_nodes": 1})


def _resources(kind: NodeType, *, catalogue: Catalogue) -> dict[str, int]:
    resources = {"CPU": catalogue.machine_type(kind.machine_type).vcpus}
    accelerator = kind.accelerator(catalogue)
    if accelerator is None:
        return resources
    name = ray_accelerator_name(accelerator.type.value)
    return {**resources, "GPU": accelerator.count, f"accelerator_type:{name}": 1}


def _check(document: dict[str, Any]) -> None:
    """Validates a document with Ray's own schema."""
    import jsonschema  # a dependency of Ray, used only here
    from ray.autoscaler._private.util import validate_config  # as above

    try:
        validate_config(document)
    except (jsonschema.ValidationError, RuntimeError, ValueError) as error:
        words = str(error).splitlines()[0]
        raise EngineError(f"the installed Ray version rejects the generated file: {words}") from None
