"""``cluster.yaml``: where machines come from, which types of them there are, and how many of each."""

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
"""The most nodes of one cluster."""

PRICE_DECIMALS: Final = 6
"""To how many decimals a list's price of an hour is rounded, half up; an operator's own is taken as it is."""

_NAME: Final = re.compile(r"[a-z]([a-z0-9-]{0,18}[a-z0-9])?")


@final
class Provider(StrEnum):
    """Where machines come from."""

    LOCAL = "local"
    """Processes of this machine that stand for machines: simulated, nothing is owed."""
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
    """What a node costs.

    Attributes:
        usd_per_hour: US dollars an hour, as a decimal; None where nobody says what.
        source: who says so.
    """

    usd_per_hour: str | None = None
    source: str = ""


@final
class NodeType(AbstractDocument):
    """One type of node that a cluster may have.

    Attributes:
        machine_type: the contract's name of the machine, which says how many vCPUs and how much memory it has.
        accelerator_config: its accelerators; those that come with the machine type if left out.
        min_nodes: how many are kept, even if nobody uses them.
        max_nodes: how many there may be.
        spot: whether the provider may take one back at any time, for a lower price.
        region: where they are; None where it does not matter.
        usd_per_hour: what one costs the operator in an hour; the list price if left out, which a spot node
            does not have.
        node_config: what the provider needs to know beside, in its own words.
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
        """Returns its accelerators, those that come with the machine type included.

        Raises:
            ConfigError: there is no such machine type.
        """
        return self.accelerator_config or catalogue.machine_type(self.machine_type).built_in

    def resources(self, catalogue: Catalogue) -> dict[str, int]:
        """Returns what one has to give to replicas, by the scheduler's names.

        Raises:
            ConfigError: there is no such machine type.
        """
        machine = catalogue.machine_type(self.machine_type)
        accelerator = self.accelerator(catalogue)
        own = {} if accelerator is None else {accelerator.type.value: accelerator.count}
        return {**own, "vcpus": machine.vcpus, "memory_mib": machine.memory_mib}

    def price(self, catalogue: Catalogue) -> NodePrice:
        """Returns what one costs: the operator's own price, or the list's where it has one for this machine there.

        Raises:
            ConfigError: there is no such machine type.
        """
        if self.usd_per_hour is not None:
            return NodePrice(usd_per_hour=str(self.usd_per_hour), source="cluster.yaml")
        accelerator = self.accelerator(catalogue)
        if self.spot or not catalogue.has_region(self.region):  # no list says what spot costs, or what others charge
            return NodePrice()
        usd = catalogue.usd_per_hour(self.machine_type, accelerator=accelerator, region=self.region)
        if usd is None:
            return NodePrice()
        return NodePrice(
            usd_per_hour=str(round_half_up(usd, decimals=PRICE_DECIMALS)),
            source=", ".join(catalogue.price_list_names(self.machine_type, accelerator=accelerator)),
        )

    def describe(self, catalogue: Catalogue) -> str:
        """Says in words what one is: "n1-standard-8 + 2 x NVIDIA_TESLA_V100, spot"."""
        words = describe_machine(self.machine_type, accelerator=self.accelerator(catalogue))
        return f"{words}, spot" if self.spot else words


@final
class ProviderConfig(AbstractDocument):
    """Where machines come from.

    Attributes:
        type: which provider.
        settings: what it needs to know, in its own words, such as ``project_id`` and ``availability_zone``.
    """

    type: Provider
    settings: dict[str, Any] = Field(default_factory=dict[str, Any])


@final
class ClusterDefinition(AbstractDocument):
    """A cluster whose machines come and go with the queue.

    Attributes:
        name: names it at the provider, whose machines of other clusters are never touched.
        provider: where machines come from.
        head_address: address of this machine as its nodes reach it; loopback for local ones.
        idle_timeout: how long a node without a job is kept for the next one.
        join_timeout: how long a machine may take from being asked for until its node is ready.
        retry_after: how long a node type that could not be had is not asked for again.
        setup_commands: what is run on each new machine before its node starts.
        node_types: which nodes there may be, by name.
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
        """How long a node without a job is kept, in seconds."""
        return duration_s(self.idle_timeout)

    @property
    def join_timeout_s(self) -> float:
        """How long a machine may take to become a node, in seconds."""
        return duration_s(self.join_timeout)

    @property
    def retry_after_s(self) -> float:
        """How long a node type that could not be had is left alone, in seconds."""
        return duration_s(self.retry_after)

    def slots(self) -> Iterator[tuple[str, str]]:
        """Yields the slots of the node types, each with its node type: ``v100-0``, ``v100-1``, and so on."""
        for name, kind in self.node_types.items():
            for index in range(kind.max_nodes):
                yield f"{name}-{index}", name

    def kept_slots(self) -> Iterator[str]:
        """Yields the slots whose nodes are kept, even if nobody uses them."""
        for name, kind in self.node_types.items():
            for index in range(kind.min_nodes):
                yield f"{name}-{index}"

    def specs(self, catalogue: Catalogue, *, up: frozenset[str]) -> tuple[NodeSpec, ...]:
        """Returns every slot as the scheduler sees it.

        Args:
            catalogue: machines.
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
        """Returns the node types that a replica may go to: those of its own machine, else any that can hold it.

        Args:
            machine_type: the replica's machine type.
            accelerator: what it has, those that come with the machine type included.
            region: where it has to be; None where it does not matter.
            catalogue: machines.
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
    """Reads a cluster's definition.

    Args:
        document: what a YAML parser gave.
        source: what to call it in errors.
        catalogue: machines, which its node types name.

    Raises:
        ConfigError: it has an unknown key, a wrong type, or names a machine that the catalogue does not have.
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
