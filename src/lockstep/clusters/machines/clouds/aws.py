"""Amazon Web Services: EC2 instances, managed through Ray's client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, final

from typing_extensions import override

from lockstep.clusters.machines.clouds.base import AbstractCloud, merged, user_config
from lockstep.clusters.machines.clouds.sizes import MachineSize, family, smallest, with_gpus
from lockstep.errors import ConfigError
from lockstep.jobs.input.spec import AcceleratorType

if TYPE_CHECKING:
    from ray.autoscaler.node_provider import NodeProvider

CLIENT_TOKEN_LENGTH: Final = 64
"""The maximum length of EC2's client token, which makes a request idempotent."""


_SIZES: Final = {
    "large": 2,
    "xlarge": 4,
    "2xlarge": 8,
    "4xlarge": 16,
    "8xlarge": 32,
    "12xlarge": 48,
    "16xlarge": 64,
    "24xlarge": 96,
}
_C5_SIZES: Final = {
    "large": 2,
    "xlarge": 4,
    "2xlarge": 8,
    "4xlarge": 16,
    "9xlarge": 36,
    "12xlarge": 48,
    "18xlarge": 72,
    "24xlarge": 96,
}

INSTANCES: Final[Mapping[str, MachineSize]] = {
    **family("c5.*", _C5_SIZES, gib_per_vcpu=2),
    **family("m5.*", _SIZES, gib_per_vcpu=4),
    **family("r5.*", _SIZES, gib_per_vcpu=8),
    **with_gpus(
        AcceleratorType.NVIDIA_TESLA_T4,
        {
            "g4dn.xlarge": (4, 16, 1),
            "g4dn.2xlarge": (8, 32, 1),
            "g4dn.4xlarge": (16, 64, 1),
            "g4dn.8xlarge": (32, 128, 1),
            "g4dn.16xlarge": (64, 256, 1),
            "g4dn.12xlarge": (48, 192, 4),
        },
    ),
    **with_gpus(AcceleratorType.NVIDIA_TESLA_A100, {"p4d.24xlarge": (96, 1152, 8)}),
}
"""Instance types that stand in for the contract's machine types. A test compares them with EC2's own description."""


@final
class AwsCloud(AbstractCloud):
    """Amazon Web Services; credentials are found as boto3 finds them."""

    extra = "aws"

    @override
    def provider_config(self) -> dict[str, Any]:
        self._check_settings(required=["region"])
        # Released instances are terminated, not stopped: the disk of a stopped instance still costs money.
        return {
            "type": "aws",
            "region": self.settings["region"],
            "cache_stopped_nodes": False,
            "use_internal_ips": True,
        }

    @override
    def node_config(self, node_type: str) -> dict[str, Any]:
        kind = self.definition.node_types[node_type]
        at = f"nodeTypes.{node_type}"
        self._check_region(node_type, region=self.settings["region"], what="the provider's")
        own = user_config(
            node_type,
            kind,
            reserved=["UserData", "MinCount", "MaxCount", "ClientToken", "TagSpecifications"],
            hint="see setupCommands, maxNodes and provider.settings.tags",
        )
        if "ImageId" not in own:
            raise ConfigError(
                f"{at}.nodeConfig.ImageId is missing", action="name the machine image that nodes start from"
            )
        if not own.get("SubnetIds") and "NetworkInterfaces" not in own:
            raise ConfigError(f"{at}.nodeConfig.SubnetIds is missing", action="list the subnets that nodes may be in")
        machine = self.catalogue.machine_type(kind.machine_type)
        derived = smallest(
            INSTANCES,
            vcpus=machine.vcpus,
            memory_gib=machine.memory_gib,
            accelerator=kind.accelerator(self.catalogue),
        )
        if derived is None and "InstanceType" not in own:
            raise ConfigError(
                f"{at}.nodeConfig.InstanceType is missing: no instance type that is known here is a "
                f"{kind.describe(self.catalogue)}",
                action="name one with at least these resources",
            )
        defaults: dict[str, Any] = {
            "InstanceType": derived,
            # An instance that turns itself off is deleted, and its disk too.
            "InstanceInitiatedShutdownBehavior": "terminate",
            # One hop: a container with its own network cannot reach the metadata, which contain the engine's token.
            "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1},
            "SubnetIds": [],
        }
        if kind.spot:
            market = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
            defaults["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": market}
        return merged(defaults, own)

    @override
    def named(self, config: Mapping[str, Any], *, name: str, script: str) -> dict[str, Any]:
        started = {**config, "UserData": script}
        if len(config["SubnetIds"]) == 1:
            # By the client token, EC2 recognizes a repeated request even before it lists the instance. With several
            # subnets Ray sends several requests, and they may not share a token.
            started["ClientToken"] = name[:CLIENT_TOKEN_LENGTH]
        return started

    @override
    def open(self) -> NodeProvider:
        from ray.autoscaler._private.aws.node_provider import AWSNodeProvider  # in an extra
        from ray.autoscaler._private.cli_logger import cli_logger  # Ray is slow to import

        cli_logger.configure(verbosity=0)  # otherwise it prints a line for each client
        return AWSNodeProvider(self.provider_config(), self.definition.name)

    @override
    def stopped(self, provider: NodeProvider) -> list[str]:
        return []
