"""The attached engine: a Ray cluster that somebody else runs, with its own nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, final

from typing_extensions import override

from lockstep.clusters.machines import Provisioning
from lockstep.clusters.ray.base import AbstractRayCluster, ray_accelerator_name, ray_version
from lockstep.clusters.ray.head import AbstractHead, HeadRecord
from lockstep.home import Home
from lockstep.jobs.input.spec import AcceleratorType
from lockstep.jobs.running.orders import GangOrder
from lockstep.jobs.scheduling import NodeSpec, Resources

_CPU: Final = "CPU"
_GPU: Final = "GPU"
_MEMORY: Final = "memory"

NODE_ID_LABEL: Final = "ray.io/node-id"
"""The label in which Ray itself stores each node's id."""


@final
class AttachedHead(AbstractHead):
    """The head of an attached Ray cluster. It is never started or ended by Lockstep.

    Args:
        address: "host:port" of the cluster's control store.
    """

    def __init__(self, address: str) -> None:
        self._record = HeadRecord(process=None, address=address, folder="")

    @override
    def find(self) -> HeadRecord | None:
        return self._record

    @override
    def start(self) -> HeadRecord:
        return self._record

    @override
    def stop(self) -> None:
        """Does nothing, because Lockstep does not own the head."""


@final
class AttachedRayCluster(AbstractRayCluster):
    """The current nodes of an attached Ray cluster, with the cores, memory and accelerators that Ray reports for them.

    Others use the nodes too: other services, and programs that are not Lockstep's. So each replica reserves its machine
    type's resources in Ray, and resources that others have reserved in Ray are not free. The service has to run on one
    of the cluster's nodes.

    Args:
        address: "host:port" of the cluster's control store.
        home: the home that uses the engine.
    """

    def __init__(self, address: str, *, home: Home) -> None:
        super().__init__(
            AttachedHead(address),
            home=home,
            what=f"the Ray at {address}",
            environment={},
            label=NODE_ID_LABEL,
            is_shared=True,
        )
        self._address = address

    @override
    def describe(self) -> dict[str, str]:
        return {"engine": f"attached Ray {ray_version()} at {self._address}"}

    @property
    @override
    def simulates_machines(self) -> bool:
        return False

    @property
    @override
    def provisioning(self) -> Provisioning | None:
        return None

    @override
    def simulates(self, accelerator_type: str, *, count: int) -> bool:
        return False

    @override
    def nodes(self) -> tuple[NodeSpec, ...]:
        return tuple(
            NodeSpec(name=name, node_type=_node_type(resources), resources=resources)
            for name, resources in self._totals().items()
        )

    @override
    def in_use(self) -> Mapping[str, Resources]:
        free: dict[str, dict[str, float]] = self._ask("free")
        return {name: _taken(total, free=free[name]) for name, total in self._totals().items() if name in free}

    @override
    def place(self, order: GangOrder) -> None:
        super().place(replace(order, replicas=tuple(replace(each, machine=each.node) for each in order.replicas)))

    def _totals(self) -> dict[str, Resources]:
        """Returns each living node's resources by node id, with the scheduler's names of resources."""
        found: list[dict[str, Any]] = self._ask("nodes")
        return {node["NodeID"]: _counted(node["Resources"]) for node in found}


def _counted(resources: Mapping[str, float]) -> dict[str, int]:
    num_gpus = int(resources.get(_GPU, 0))
    kinds = [
        kind.value
        for kind in AcceleratorType
        if num_gpus and f"accelerator_type:{ray_accelerator_name(kind.value)}" in resources
    ]
    sizes = {"vcpus": int(resources.get(_CPU, 0)), "memory_mib": int(resources.get(_MEMORY, 0)) >> 20}
    return {**dict.fromkeys(kinds[:1], num_gpus), **sizes}


def _node_type(resources: Resources) -> str:
    """Returns a name for a node's type. Nodes with equal resources have the same type."""
    return ", ".join(f"{amount} {name}" for name, amount in resources.items())


def _taken(total: Resources, *, free: Mapping[str, float]) -> dict[str, int]:
    """Returns a node's resources in use, rounded up. Tiny shares that only mark a placement count as 0."""
    names = {"vcpus": _CPU, "memory_mib": _MEMORY}
    units = {"vcpus": 1.0, "memory_mib": float(1 << 20)}
    taken = {
        name: math.ceil(round(amount - free.get(names.get(name, _GPU), 0.0) / units.get(name, 1.0), 2))
        for name, amount in total.items()
    }
    return {name: max(0, amount) for name, amount in taken.items()}
