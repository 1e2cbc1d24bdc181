"""Defines ``cluster.yaml``: the provider of machines, the node types, and the number of nodes of each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, Self, final

from pydantic import BeforeValidator, Field, model_validator

from lockstep.errors import ConfigError, closest
from lockstep.jobs.billing.bills import round_half_up
from lockstep.jobs.input.gangs import describe_machine
from lockstep.jobs.input.spec import AcceleratorConfig
from lockstep.jobs.machines.catalogue import Catalogue
from lockstep.jobs.parsing.fields import AbstractDocument, Dollars, Duration, Flag, Int32, Text, duration_s, rule_error
from lockstep.jobs.parsing.rules import Violation, parse_document, raise_violations
from lockstep.jobs.scheduling import NodeSpec

MAX_NODES: Final = 10_000
"""The maximum number of nodes of one cluster."""

PRICE_DECIMALS: Final = 6
"""The decimals to which a list price per hour is rounded, half up; an operator's own price is not rounded."""

_NAME: Final = re.compile(r"[a-z]([a-z0-9-]{0,18}[a-z0-9])?")


@final
class Provider(StrEnum):
    """The source of machines."""

    LOCAL = "local"
    """Processes of this machine that represent machines: simulated, at no cost."""
    GCP = "gcp"
    """Google Cloud."""
    AWS = "aws"
    """Amazon Web Services."""
    AZURE = "azure"
    """Microsoft Azure."""
    KUBERNETES = "kubernetes"
    """Pods of a Kubernetes cluster that runs KubeRay."""


def _check_name(value: object) -> object:
    if not (isinstance(value, str) and _NAME.fullmatch(value)):
        raise rule_error(allowed="1 to 20 lower-case letters, digits and -, beginning with a letter")
    return value


Name = Annotated[str, BeforeValidator(_check_name)]


@final
@dataclass(frozen=True, kw_only=True)
class NodePrice:
    """The price of a node.

    Attributes:
        usd_per_hour: the price in US dollars per hour, as a decimal number; None if it is unpriced.
        source: the source of the price.
    """

    usd_per_hour: str | None = None
    source: str = ""


@final
class NodeType(AbstractDocument):
    """One type of node that a cluster may have.

    Attributes:
        machine_type: the contract's name of the machine type, which determines vCPUs and memory.
        accelerator_config: the accelerators; if left out, those that are built into the machine type.
        min_nodes: the number of nodes that are kept even if no job uses them.
        max_nodes: the maximum number of nodes.
        spot: whether the provider may take a node back at any time, for a lower price.
        region: the region of the nodes; None if it does not matter.
        usd_per_hour: the operator's own price of a node in US dollars per hour. If left out, the list price applies,
            which spot nodes do not have.
        node_config: further settings for the provider, in the provider's own form.
    """

    machine_type: Text
    accelerator_config: AcceleratorConfig | None = None
    min_nodes: Int32 = Field(default=0, ge=0, le=MAX_NODES)
    max_nodes: Int32 = Field(ge=1, le=MAX_NODES)
    spot: Flag = False
    region: Text | None = None
    usd_per_hour: Dollars | None = None
    node_config: dict[str, Any] = Field(default_factory=dict[str, Any])

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.min_nodes > self.max_nodes:
            raise_violations(
                [Violation(path=("minNodes",), received=self.min_nodes, allowed=f"at most maxNodes, {self.max_nodes}")]
            )
        return self

    def accelerator(self, catalogue: Catalogue) -> AcceleratorConfig | None:
        """Returns the accelerators, including those that are built into the machine type.

        Raises:
            ConfigError: If there is no such machine type.
        """
        return self.accelerator_config or catalogue.machine_type(self.machine_type).built_in

    def resources(self, catalogue: Catalogue) -> dict[str, int]:
        """Returns the resources that a node has for replicas, by the scheduler's names.

        Raises:
            ConfigError: If there is no such machine type.
        """
        machine = catalogue.machine_type(self.machine_type)
        accelerator = self.accelerator(catalogue)
        own = {} if accelerator is None else {accelerator.type.value: accelerator.count}
        return {**own, "vcpus": machine.vcpus, "memory_mib": machine.memory_mib}

    def price(self, catalogue: Catalogue) -> NodePrice:
        """Returns the price of a node: the operator's own, or the list price for the machine and region, if any.

        Raises:
            ConfigError: If there is no such machine type.
        """
        if self.usd_per_hour is not None:
            return NodePrice(usd_per_hour=str(self.usd_per_hour), source="cluster.yaml")
        accelerator = self.accelerator(catalogue)
        if self.spot or not catalogue.has_region(self.region):  # no list has prices of spot or of other providers
            return NodePrice()
        usd = catalogue.usd_per_hour(self.machine_type, accelerator=accelerator, region=self.region)
        if usd is None:
            return NodePrice()
        return NodePrice(
            usd_per_hour=str(round_half_up(usd, decimals=PRICE_DECIMALS)),
            source=", ".join(catalogue.price_list_names(self.machine_type, accelerator=accelerator)),
        )

    def describe(self, catalogue: Catalogue) -> str:
        """Describes a node of this type, as in "n1-standard-8 + 2 x NVIDIA_TESLA_V100, spot"."""
        words = describe_machine(self.machine_type, accelerator=self.accelerator(catalogue))
        return f"{words}, spot" if self.spot else words


@final
class ProviderConfig(AbstractDocument):
    """The provider of the cluster's machines.

    Attributes:
        type: the provider.
        settings: the provider's settings in its own form, such as ``project_id`` and ``availability_zone``.
    """

    type: Provider
    settings: dict[str, Any] = Field(default_factory=dict[str, Any])


@final
class ClusterDefinition(AbstractDocument):
    """A cluster whose machines come and go with the queue.

    Attributes:
        name: the cluster's name at the provider. Machines of other clusters there are never touched.
        provider: the provider of machines.
        head_address: the address at which the nodes reach this machine; loopback for local ones.
        idle_timeout: how long a node without a job is kept for the next job.
        join_timeout: the maximum time from the request of a machine until its node is ready.
        retry_after: the time for which an unavailable node type is not requested again.
        setup_commands: the commands to run on each new machine before its node starts.
        node_types: the available node types, by name.
    """

    name: Name
    provider: ProviderConfig
    head_address: Text | None = None
    idle_timeout: Duration = "300s"
    join_timeout: Duration = "600s"
    retry_after: Duration = "60s"
    setup_commands: tuple[Text, ...] = ()
    node_types: dict[Name, NodeType] = Field(min_length=1)
    version: Literal[1] = 1

    @model_validator(mode="after")
    def _check(self) -> Self:
        violations: list[Violation] = []
        if self.provider.type is not Provider.LOCAL and self.head_address is None:
            violations.append(Violation(path=("headAddress",), allowed="this machine's address as its nodes reach it"))
        total = sum(kind.max_nodes for kind in self.node_types.values())
        if total > MAX_NODES:
            violations.append(
                Violation(path=("nodeTypes",), received=f"{total} nodes", allowed=f"at most {MAX_NODES} in all")
            )
        raise_violations(violations)
        return self

    @property
    def idle_timeout_s(self) -> float:
        """The time for which a node without a job is kept, in seconds."""
        return duration_s(self.idle_timeout)

    @property
    def join_timeout_s(self) -> float:
        """The maximum time from the request of a machine until its node is ready, in seconds."""
        return duration_s(self.join_timeout)

    @property
    def retry_after_s(self) -> float:
        """The time for which an unavailable node type is not requested again, in seconds."""
        return duration_s(self.retry_after)

    def slots(self) -> Iterator[tuple[str, str]]:
        """Yields the slots of the node types, each with its node type: ``v100-0``, ``v100-1``, and so on."""
        for name, kind in self.node_types.items():
            for index in range(kind.max_nodes):
                yield f"{name}-{index}", name

    def kept_slots(self) -> Iterator[str]:
        """Yields the slots whose nodes are kept even if no job uses them."""
        for name, kind in self.node_types.items():
            for index in range(kind.min_nodes):
                yield f"{name}-{index}"

    def specs(self, catalogue: Catalogue, *, up: frozenset[str]) -> tuple[NodeSpec, ...]:
        """Returns every slot in the scheduler's form.

        Args:
            catalogue: the catalogue of machines.
            up: the slots whose nodes are ready.
        """
        resources = {name: kind.resources(catalogue) for name, kind in self.node_types.items()}
        return tuple(
            NodeSpec(name=slot, node_type=name, resources=resources[name], is_up=slot in up)
            for slot, name in self.slots()
        )

    def types_for(
        self, machine_type: str, *, accelerator: AcceleratorConfig | None, region: str | None, catalogue: Catalogue
    ) -> tuple[str, ...]:
        """Returns the node types that can hold a replica: those of its own machine type, else all large enough.

        Args:
            machine_type: the replica's machine type.
            accelerator: the replica's accelerators, including those that are built into the machine type.
            region: the required region; None if it does not matter.
            catalogue: the catalogue of machines.
        """
        machine = catalogue.machine_type(machine_type)
        own: list[str] = []
        others: list[str] = []
        for name, kind in self.node_types.items():
            if region is not None and kind.region is not None and kind.region != region:
                continue
            has = kind.accelerator(catalogue)
            if kind.machine_type == machine_type and has == accelerator:
                own.append(name)
                continue
            size = catalogue.machine_type(kind.machine_type)
            is_large = size.vcpus >= machine.vcpus and size.memory_gib >= machine.memory_gib
            has_accelerators = accelerator is None or (
                has is not None and has.type is accelerator.type and has.count >= accelerator.count
            )
            if is_large and has_accelerators:
                others.append(name)
        return tuple(own or others)


def parse_cluster(document: object, *, source: str, catalogue: Catalogue) -> ClusterDefinition:
    """Parses a cluster's definition.

    Args:
        document: the value that the YAML parser returned.
        source: the name of the document in error messages.
        catalogue: the catalogue with the machine types that the node types name.

    Raises:
        ConfigError: If the document has an unknown key or a wrong type, or names a machine type that the catalogue does
            not have.
    """
    read = parse_document(ClusterDefinition, document=document, source=source)
    for name, kind in read.node_types.items():
        known = catalogue.machine_types
        if kind.machine_type not in known:
            raise ConfigError(
                f"{source}: nodeTypes.{name}.machineType",
                received=kind.machine_type,
                allowed=sorted(known),
                action=closest(kind.machine_type, list(known)),
            )
    return read
