"""A Ray that somebody else keeps, with the nodes that it has."""

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
"""The label by which Ray itself names every node."""


@final
class AttachedHead(AbstractHead):
    """The head of a Ray that is somebody else's: it is never started nor ended.

    Args:
        address: "host:port" of its control store.
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
        """Does nothing: it is not ours."""


@final
class AttachedRayCluster(AbstractRayCluster):
    """The nodes that a Ray has now, each with the cores, memory and accelerators that it says it has.

    Others use them too: other services, and programs that know nothing of Lockstep. So each replica reserves in Ray
    what its machine type has, and what others have reserved there is not free. The service has to run on one of its
    nodes.

    Args:
        address: "host:port" of its control store.
        home: whose engine it is.
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
        """Returns what each living node has, by the names that the scheduler knows."""
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
    """Names a node's type: nodes that have the same are of one."""
    return ", ".join(f"{amount} {name}" for name, amount in resources.items())


def _taken(total: Resources, *, free: Mapping[str, float]) -> dict[str, int]:
    """Returns how much of what a node has is not free, rounded up, but for shares that only name a place."""
    names = {"vcpus": _CPU, "memory_mib": _MEMORY}
    units = {"vcpus": 1.0, "memory_mib": float(1 << 20)}
    taken = {
        name: math.ceil(round(amount - free.get(names.get(name, _GPU), 0.0) / units.get(name, 1.0), 2))
        for name, amount in total.items()
    }
    return {name: max(0, amount) for name, amount in taken.items()}
