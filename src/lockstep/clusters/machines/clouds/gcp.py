"""Google Cloud: Compute Engine instances, managed through Ray's client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, final

from typing_extensions import override

from lockstep.clusters.machines.clouds.base import AbstractCloud, merged, user_config
from lockstep.errors import ConfigError
from lockstep.jobs.machines.catalogue import Category

if TYPE_CHECKING:
    from ray.autoscaler.node_provider import NodeProvider

MAX_MACHINES: Final = 500
"""Ray's client reads only the first page of the list of instances; other instances would count as lost."""

MAX_NAME_LENGTH: Final = 46
"""Google allows 63 characters for an instance's name, and Ray adds 17 of its own."""

_ACCELERATORS: Final = {
    "NVIDIA_L4": "nvidia-l4",
    "NVIDIA_A100_80GB": "nvidia-a100-80gb",
    "NVIDIA_H100_80GB": "nvidia-h100-80gb",
    "NVIDIA_H200_141GB": "nvidia-h200-141gb",
}


@final
class GoogleCloud(AbstractCloud):
    """Google Cloud; credentials are found as Google's libraries find them."""

    extra = "gcp"

    @override
    def provider_config(self) -> dict[str, Any]:
        self._check_settings(required=["project_id", "availability_zone"])
        zone: str = self.settings["availability_zone"]
        total = sum(kind.max_nodes for kind in self.definition.node_types.values())
        if total > MAX_MACHINES:
            raise ConfigError("nodeTypes", received=f"{total} nodes", allowed=f"at most {MAX_MACHINES} in all on gcp")
        return {
            "type": "gcp",
            "region": zone.rpartition("-")[0],
            "availability_zone": zone,
            "project_id": self.settings["project_id"],
            "cache_stopped_nodes": False,
            "use_internal_ips": True,
        }

    @override
    def node_config(self, node_type: str) -> dict[str, Any]:
        kind = self.definition.node_types[node_type]
        at = f"nodeTypes.{node_type}"
        region = self.settings["availability_zone"].rpartition("-")[0]
        self._check_region(node_type, region=region, what="that of the provider's zone")
        length = len(f"{self.definition.name}-{node_type}-{kind.max_nodes - 1}-000000")
        if length > MAX_NAME_LENGTH:
            raise ConfigError(
                f"{at}: its machines' names would have {length} characters",
                allowed=f"at most {MAX_NAME_LENGTH} on gcp",
                action="give the cluster, or the node type, a shorter name",
            )
        machine = self.catalogue.machine_type(kind.machine_type)
        own = user_config(node_type, kind, reserved=["name", "labels"], hint="see provider.settings.tags")
        if machine.category is not Category.COMPUTE_ENGINE and "machineType" not in own:
            raise ConfigError(f"{at}.machineType", received=kind.machine_type, allowed="a machine of Compute Engine")
        if "disks" not in own and "sourceInstanceTemplate" not in own:
            raise ConfigError(
                f"{at}.nodeConfig.disks is missing",
                action="set the image of the nodes: disks with a sourceImage, or a sourceInstanceTemplate",
            )
        if any(item.get("key") == "startup-script" for item in own.get("metadata", {}).get("items", [])):
            raise ConfigError(f"{at}.nodeConfig.metadata has a startup-script", action="see setupCommands")
        accelerator = kind.accelerator(self.catalogue)
        if accelerator is not None and not accelerator.type.value.startswith("NVIDIA_"):
            raise ConfigError(f"{at}.acceleratorConfig.type", received=accelerator.type.value, allowed="GPUs, on gcp")
        scheduling: dict[str, Any] = {}
        if accelerator is not None or kind.spot:
            scheduling = {"onHostMaintenance": "TERMINATE", "automaticRestart": False}
        if kind.spot:
            scheduling |= {"provisioningModel": "SPOT", "instanceTerminationAction": "DELETE"}
        defaults: dict[str, Any] = {"machineType": kind.machine_type}
        if scheduling:
            defaults["scheduling"] = scheduling
        if accelerator is not None and machine.built_in is None:
            defaults["guestAccelerators"] = [
                {"acceleratorType": _accelerator(accelerator.type.value), "acceleratorCount": accelerator.count}
            ]
        if "sourceInstanceTemplate" not in own:
            defaults["networkInterfaces"] = [{"network": "global/networks/default"}]
        return merged(defaults, own)

    @override
    def named(self, config: Mapping[str, Any], *, name: str, script: str) -> dict[str, Any]:
        metadata = config.get("metadata", {})
        items = [*metadata.get("items", []), {"key": "startup-script", "value": script}]
        return {**config, "metadata": {**metadata, "items": items}}

    @override
    def open(self) -> NodeProvider:
        from ray.autoscaler._private.gcp.node_provider import GCPNodeProvider  # in an extra

        return GCPNodeProvider(self.provider_config(), self.definition.name)

    @override
    def stopped(self, provider: NodeProvider) -> list[str]:
        from ray.autoscaler._private.gcp.node import GCPNodeType  # in an extra
        from ray.autoscaler._private.gcp.node_provider import GCPNodeProvider  # as above

        assert isinstance(provider, GCPNodeProvider), "what `open` returns"
        compute = provider.resources[GCPNodeType.COMPUTE]
        # An instance that turned itself off is kept, with its disk, until somebody deletes it.
        with provider.lock:
            found = compute.list_instances(is_terminated=True)
            provider.cached_nodes.update({str(node["name"]): node for node in found})
        return [str(node["name"]) for node in found]


def _accelerator(name: str) -> str:
    return _ACCELERATORS.get(name, name.lower().replace("_", "-"))
