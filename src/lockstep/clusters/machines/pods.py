"""Machines that are pods of Kubernetes: what one consists of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, final

from lockstep.clusters.machines.clouds.base import merged, own_config
from lockstep.errors import ConfigError, closest
from lockstep.jobs.machines.catalogue import Catalogue
from lockstep.jobs.provisioning import ClusterDefinition

TOKEN_FOLDER: Final = "/run/lockstep"  # noqa: S105 - a folder's path
TOKEN_KEY: Final = "ray-token"  # noqa: S105 - a file's name

_SETTINGS: Final = ("namespace", "image", "kubeconfig")


@final
class Pods:
    """The pods of one cluster. Pure.

    Args:
        definition: the cluster.
        catalogue: machines, which its node types name.

    Raises:
        ConfigError: a setting is missing or not known, or a node type cannot be a pod.
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
        """Returns a pod's specification, but for what it runs.

        Args:
            node_type: its type.

        Raises:
            ConfigError: it has accelerators that are no GPUs, or sets what is Lockstep's to set.
        """
        kind = self.definition.node_types[node_type]
        own = own_config(
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
        """Returns the specification of a pod that is a machine: it ends when its node does, and is not started again.

        Args:
            node_type: its type.
            script: what its container runs.
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
        }
        return {
            "securityContext": {"fsGroup": 1000},  # whoever the image's user is can read the token
            "automountServiceAccountToken": False,  # programs have nothing to ask of Kubernetes
            "containers": [
                {
                    "name": container,
                    "image": self.image,
                    "env": [{"name": name, "value": value} for name, value in variables.items()],
                    "resources": {"requests": dict(resources), "limits": dict(resources)},
                    "volumeMounts": [
                        {"name": "ray-token", "mountPath": TOKEN_FOLDER, "readOnly": True},
                        {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108 - Ray's objects lie there
                    ],
                }
            ],
            "volumes": [
                {"name": "ray-token", "secret": {"secretName": self.token_secret, "defaultMode": 0o440}},
                {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
            ],
        }
