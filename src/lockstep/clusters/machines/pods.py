"""Builds the specifications of pods that are machines of a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, final

from lockstep.clusters.machines.clouds.base import merged, user_config
from lockstep.errors import ConfigError, closest
from lockstep.jobs.machines.catalogue import Catalogue
from lockstep.jobs.provisioning import ClusterDefinition

TOKEN_FOLDER: Final = "/run/lockstep"  # noqa: S105 - a folder's path
TOKEN_KEY: Final = "ray-token"  # noqa: S105 - a file's name

_SETTINGS: Final = ("namespace", "image", "kubeconfig")


@final
class Pods:
    """The pod specifications of one cluster. No method has side effects.

    Args:
        definition: the cluster's definition.
        catalogue: the catalogue of the machine types that node types name.

    Raises:
        ConfigError: a setting is missing or unknown, or a node type cannot be a pod.
    """

    def __init__(self, definition: ClusterDefinition, *, catalogue: Catalogue) -> None:
        self.definition = definition
        self._catalogue = catalogue
        settings = definition.provider.settings
        for key, value in settings.items():
            if key not in _SETTINGS:
                raise ConfigError(
                    f"provider.settings.{key} is not known", allowed=sorted(_SETTINGS), action=closest(key, _SETTINGS)
                )
            if not isinstance(value, str) or not value:
                raise ConfigError(f"provider.settings.{key}", received=value, allowed="text")
        if "image" not in settings:
            raise ConfigError("provider.settings.image is missing", action="name an image with Ray and Lockstep in it")
        self.kubeconfig: str | None = settings.get("kubeconfig")
        self.namespace: str = settings.get("namespace", "default")
        self.image: str = settings["image"]
        self.token_secret = f"{definition.name}-ray-token"
        for name in definition.node_types:
            self.template(name)

    def template(self, node_type: str) -> dict[str, Any]:
        """Returns a pod's specification without the command that it runs.

        Args:
            node_type: the node type of the machine.

        Raises:
            ConfigError: the node type has accelerators other than GPUs, or sets a field that Lockstep sets.
        """
        kind = self.definition.node_types[node_type]
        own = user_config(
            node_type,
            kind,
            reserved=["containers", "volumes", "restartPolicy"],
            hint="see provider.settings.image",
        )
        machine = self._catalogue.machine_type(kind.machine_type)
        resources: dict[str, Any] = {"cpu": str(machine.vcpus), "memory": f"{int(machine.memory_gib * 1024)}Mi"}
        accelerator = kind.accelerator(self._catalogue)
        if accelerator is not None:
            if not accelerator.type.value.startswith("NVIDIA_"):
                raise ConfigError(
                    f"nodeTypes.{node_type}.acceleratorConfig.type",
                    received=accelerator.type.value,
                    allowed="GPUs, on kubernetes",
                )
            resources["nvidia.com/gpu"] = str(accelerator.count)
        return merged(self._frame(resources, container="ray-worker"), own)

    def machine(self, node_type: str, *, script: str) -> dict[str, Any]:
        """Returns the specification of a pod that is a machine. The pod ends with its node, and is not restarted.

        Args:
            node_type: the node type of the machine.
            script: the Bash script that the container runs.
        """
        spec = self.template(node_type)
        (container,) = spec["containers"]
        return {**spec, "restartPolicy": "Never", "containers": [{**container, "command": ["bash", "-c", script]}]}

    def head_template(self) -> dict[str, Any]:
        """Returns the specification of KubeRay's head, which holds no replicas."""
        return self._frame({"cpu": "2", "memory": "8192Mi"}, container="ray-head")

    def _frame(self, resources: Mapping[str, str], *, container: str) -> dict[str, Any]:
        variables = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": f"{TOKEN_FOLDER}/{TOKEN_KEY}",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",  # see `lockstep.clusters.ray.head`
        }
        return {
            "securityContext": {"fsGroup": 1000},  # the image's user, whatever its id, can read the token
            "automountServiceAccountToken": False,  # programs do not use the Kubernetes API
            "containers": [
                {
                    "name": container,
                    "image": self.image,
                    "env": [{"name": name, "value": value} for name, value in variables.items()],
                    "resources": {"requests": dict(resources), "limits": dict(resources)},
                    "volumeMounts": [
                        {"name": "ray-token", "mountPath": TOKEN_FOLDER, "readOnly": True},
                        {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108 - Ray's object store
                    ],
                }
            ],
            "volumes": [
                {"name": "ray-token", "secret": {"secretName": self.token_secret, "defaultMode": 0o440}},
                {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
            ],
        }
