"""Generates a manifest for the KubeRay operator from a cluster's definition, for ``kubectl apply -f FILE``."""

from __future__ import annotations

from typing import Any, Final

from lockstep.clusters.machines.pods import Pods
from lockstep.clusters.ray.node_start import NODE_TYPE_LABEL
from lockstep.errors import ConfigError
from lockstep.jobs.machines.catalogue import Catalogue
from lockstep.jobs.provisioning import ClusterDefinition

API_VERSION: Final = "ray.io/v1"
CLUSTER_LABEL: Final = "lockstep.io/cluster"


def kuberay_manifest(definition: ClusterDefinition, *, catalogue: Catalogue) -> dict[str, Any]:
    """Returns the manifest of a cluster that the KubeRay operator runs.

    The manifest does not contain the token. It names a Secret with the token, which must exist before.

    Args:
        definition: the cluster's definition.
        catalogue: the catalogue of machine types.

    Raises:
        ConfigError: a setting is missing or unknown, or a node type cannot be a pod.
    """
    import ray  # only for its version; the import is slow

    if definition.setup_commands:
        raise ConfigError("KubeRay does not support setupCommands", action="run the commands when you build the image")
    pods = Pods(definition, catalogue=catalogue)
    groups: list[dict[str, Any]] = []
    for name, kind in definition.node_types.items():
        labels = {CLUSTER_LABEL: definition.name, NODE_TYPE_LABEL: name}
        groups.append(
            {
                "groupName": name,
                "replicas": kind.min_nodes,
                "minReplicas": kind.min_nodes,
                "maxReplicas": kind.max_nodes,
                "rayStartParams": {"disable-usage-stats": "true"},
                "template": {"metadata": {"labels": labels}, "spec": pods.template(name)},
            }
        )
    head = {"metadata": {"labels": {CLUSTER_LABEL: definition.name}}, "spec": pods.head_template()}
    return {
        "apiVersion": API_VERSION,
        "kind": "RayCluster",
        "metadata": {
            "name": definition.name,
            "namespace": pods.namespace,
            "labels": {CLUSTER_LABEL: definition.name},
        },
        "spec": {
            "rayVersion": ray.__version__,
            "headGroupSpec": {
                # The head holds no replicas.
                "rayStartParams": {"num-cpus": "0", "disable-usage-stats": "true"},
                "template": head,
            },
            "workerGroupSpecs": groups,
        },
    }
