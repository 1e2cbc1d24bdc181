"""A Ray that somebody else keeps, with the nodes that it has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, final

import ray
from typing_extensions import override

from lockstep.clusters.machines import Provisioning
from lockstep.clusters.ray.base import AbstractRayCluster, ray_accelerator_name
from lockstep.clusters.ray.head import AbstractHead, HeadRecord
from lockstep.jobs import AcceleratorType
from lockstep.jobs.orders import GangOrder
from lockstep.jobs.scheduling import NodeSpec

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

    The service has to run on one of its nodes.

    Args:
        address: "host:port" of its control store.
    """

    def __init__(self, address: str) -> None:
        super().__init__(AttachedHead(address), what=f"the Ray at {address}", label=NODE_ID_LABEL)
        self._address = address

    @override
    def describe(self) -> dict[str, str]:
        return {"engine": f"attached Ray {ray.__version__} at {self._address}"}

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
        def present() -> tuple[NodeSpec, ...]:
            found: list[dict[str, Any]] = ray.nodes()
            return tuple(_spec(node) for node in found if node["Alive"])

        return self._call(present)

    @override
    def place(self, order: GangOrder) -> None:
        super().place(replace(order, replicas=tuple(replace(each, machine=each.node) for each in order.replicas)))


def _spec(node: dict[str, Any]) -> NodeSpec:
    resources: dict[str, float] = node["Resources"]
    num_gpus = int(resources.get("GPU", 0))
    kinds = [
        kind.value
        for kind in AcceleratorType
        if num_gpus and f"accelerator_type:{ray_accelerator_name(kind.value)}" in resources
    ]
    sizes = {"vcpus": int(resources.get("CPU", 0)), "memory_mib": int(resources.get("memory", 0)) >> 20}
    resources_here = {**dict.fromkeys(kinds[:1], num_gpus), **sizes}
    # Nodes that have the same are of one type.
    node_type = ", ".join(f"{amount} {name}" for name, amount in resources_here.items())
    return NodeSpec(name=node["NodeID"], node_type=node_type, resources=resources_here)
