"""Microsoft Azure: virtual machines, managed through Ray's client."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, final

from typing_extensions import override

from lockstep.clusters.machines.clouds.base import AbstractCloud, merged, user_config
from lockstep.clusters.machines.clouds.sizes import MachineSize, family, smallest, with_gpus
from lockstep.errors import ConfigError, closest
from lockstep.jobs.input.spec import AcceleratorType

if TYPE_CHECKING:
    from ray.autoscaler.node_provider import NodeProvider

SIZES: Final[Mapping[str, MachineSize]] = {
    **family("Standard_F*s_v2", {str(size): size for size in (2, 4, 8, 16, 32, 48, 64, 72)}, gib_per_vcpu=2),
    **family("Standard_D*s_v5", {str(size): size for size in (2, 4, 8, 16, 32, 48, 64, 96)}, gib_per_vcpu=4),
    **family("Standard_E*s_v5", {str(size): size for size in (2, 4, 8, 16, 20, 32, 48, 64)}, gib_per_vcpu=8),
    **with_gpus(
        AcceleratorType.NVIDIA_TESLA_T4,
        {
            "Standard_NC4as_T4_v3": (4, 28, 1),
            "Standard_NC8as_T4_v3": (8, 56, 1),
            "Standard_NC16as_T4_v3": (16, 110, 1),
            "Standard_NC64as_T4_v3": (64, 440, 4),
        },
    ),
    **with_gpus(AcceleratorType.NVIDIA_TESLA_A100, {"Standard_ND96asr_v4": (96, 900, 8)}),
    **with_gpus(
        AcceleratorType.NVIDIA_A100_80GB,
        {
            "Standard_NC24ads_A100_v4": (24, 220, 1),
            "Standard_NC48ads_A100_v4": (48, 440, 2),
            "Standard_NC96ads_A100_v4": (96, 880, 4),
        },
    ),
    **with_gpus(AcceleratorType.NVIDIA_H100_80GB, {"Standard_ND96isr_H100_v5": (96, 1900, 8)}),
}
"""Sizes that stand in for the contract's machine types.

Source: https://learn.microsoft.com/azure/virtual-machines/sizes/overview
"""

IMAGE_PARTS: Final = ("imagePublisher", "imageOffer", "imageSku", "imageVersion")

NODE_KEYS: Final = frozenset(
    {
        "vmSize",
        "imageId",
        *IMAGE_PARTS,
        "osDiskSize",
        "adminUsername",
        "publicKey",
        "enableAcceleratedNetworking",
        "billingProfile",
    }
)
"""The keys that a node type's ``nodeConfig`` may have: parameters of Ray's template."""

_KINDS: Final = {
    "subnet": "Microsoft.Network/virtualNetworks/NETWORK/subnets/SUBNET",
    "nsg": "Microsoft.Network/networkSecurityGroups/GROUP",
    "msi": "Microsoft.ManagedIdentity/userAssignedIdentities/IDENTITY",
}
"""Settings that are resource ids, each with the part of the id that follows the resource group."""

_METADATA: Final = "http://169.254.169.254/metadata"
_ASK: Final = f"curl -sf --max-time 60 --retry 5 --noproxy '*' -H Metadata:true '{_METADATA}"

_STOP: Final = '"https://management.azure.com$machine/deallocate?api-version=2024-07-01"'

DEALLOCATE: Final = (
    f"machine=$({_ASK}/instance/compute/resourceId?api-version=2021-02-01&format=text')",
    f"{_ASK}/identity/oauth2/token?api-version=2018-02-01&resource=https%3A%2F%2Fmanagement.azure.com%2F' |",
    """sed -n 's/.*"access_token" *: *"\\([^"]*\\)".*/header = "Authorization: Bearer \\1"/p' |""",
    f"curl -sf --max-time 60 --retry 5 -K - -X POST -d '' {_STOP}",
)
"""Commands with which a machine asks Azure, by its managed identity, to deallocate it.

A machine that is only turned off is billed as before. The identity's token appears in no command line.
"""


@final
class AzureCloud(AbstractCloud):
    """Microsoft Azure; credentials are found as Azure's libraries find them."""

    extra = "azure"
    before_off = DEALLOCATE

    @override
    def provider_config(self) -> dict[str, Any]:
        plain = ["subscription_id", "resource_group", "location"]
        self._check_settings(required=[*plain, *_KINDS], optional=["availability_zone"])
        for key, kind in _KINDS.items():
            pattern = "/subscriptions/[^/]+/resourceGroups/[^/]+/providers/" + re.sub("[A-Z]{2,}", "[^/]+", kind)
            if not re.fullmatch(pattern, self.settings[key], re.IGNORECASE):
                raise ConfigError(
                    f"provider.settings.{key}",
                    received=self.settings[key],
                    allowed=f"its id: /subscriptions/ID/resourceGroups/GROUP/providers/{kind}",
                )
        zone = self.settings.get("availability_zone", "none")
        if not isinstance(zone, str) or not re.fullmatch("[1-9]|none", zone):
            raise ConfigError(
                "provider.settings.availability_zone", received=zone, allowed='one zone in quotes, such as "1", or none'
            )
        return {
            "type": "azure",
            **{key: self.settings[key] for key in plain},
            # If it were not set, Ray would always request zone 1.
            "availability_zone": zone,
            "cache_stopped_nodes": False,
            "use_internal_ips": True,
        }

    @override
    def node_config(self, node_type: str) -> dict[str, Any]:
        kind = self.definition.node_types[node_type]
        at = f"nodeTypes.{node_type}"
        self._check_region(node_type, region=self.settings["location"], what="the provider's location")
        own = user_config(
            node_type,
            kind,
            reserved=["customData", "priority", "evictionPolicy", "tags"],
            hint="see setupCommands, spot and provider.settings.tags",
        )
        for key in own:
            if key not in NODE_KEYS:
                raise ConfigError(
                    f"{at}.nodeConfig.{key} is not known", allowed=sorted(NODE_KEYS), action=closest(key, NODE_KEYS)
                )
        if "imageId" not in own and not own.keys() >= set(IMAGE_PARTS):
            raise ConfigError(
                f"{at}.nodeConfig.imageId is missing",
                action=f"set the image of the nodes: an image's id, or {', '.join(IMAGE_PARTS)}",
            )
        machine = self.catalogue.machine_type(kind.machine_type)
        derived = smallest(
            SIZES,
            vcpus=machine.vcpus,
            memory_gib=machine.memory_gib,
            accelerator=kind.accelerator(self.catalogue),
        )
        if derived is None and "vmSize" not in own:
            raise ConfigError(
                f"{at}.nodeConfig.vmSize is missing: no size that is known here is a {kind.describe(self.catalogue)}",
                action="name one with at least these resources",
            )
        # An evicted spot machine is deleted: if it were deallocated, it would still be listed.
        spot = {"priority": "Spot", "evictionPolicy": "Delete"} if kind.spot else {}
        return {"azure_arm_parameters": merged({"vmSize": derived, **spot}, own)}

    @override
    def named(self, config: Mapping[str, Any], *, name: str, script: str) -> dict[str, Any]:
        zone = self.settings.get("availability_zone", "none")
        parameters = {
            "adminUsername": "lockstep",
            **config["azure_arm_parameters"],
            "location": self.settings["location"],
            "customData": base64.b64encode(script.encode()).decode(),
            **({} if zone == "none" else {"zone": zone}),
        }
        if "publicKey" not in parameters:
            parameters["publicKey"] = _throwaway_public_key()
        return {"azure_arm_parameters": parameters}

    @override
    def open(self) -> NodeProvider:
        from lockstep.clusters.machines.clouds.azure_provider import AzureProvider  # in an extra

        own = {key: self.settings[key] for key in _KINDS}
        # The zone goes into our template only: for a zone, Ray would list all of Azure's sizes to check it.
        config = {**self.provider_config(), **own, "availability_zone": "none", "unique_id": self.definition.name}
        return AzureProvider(config, self.definition.name)

    @override
    def stopped(self, provider: NodeProvider) -> list[str]:
        return []


def _throwaway_public_key() -> str:
    """Returns a public SSH key that lets nobody log in: Azure requires one, and the private key is discarded."""
    from ray.autoscaler._private.util import generate_rsa_key_pair  # Ray is slow to import

    public, _ = generate_rsa_key_pair()
    return public
