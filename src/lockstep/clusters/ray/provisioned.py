"""A Ray of Lockstep's own whose nodes come and go with the queue."""

from __future__ import annotations

from typing import Any, final

import ray
from typing_extensions import override

from lockstep.clusters.machines import Provisioning
from lockstep.clusters.ray.base import AbstractRayCluster
from lockstep.clusters.ray.head import AbstractHead
from lockstep.clusters.ray.node_start import NODE_LABEL, NODE_TYPE_LABEL
from lockstep.jobs import Catalogue
from lockstep.jobs.provisioning import Provider
from lockstep.jobs.scheduling import NodeSpec


@final
class ProvisionedRayCluster(AbstractRayCluster):
    """A head beside the service, and nodes on machines of a provider. The head itself holds no replicas.

    Args:
        head: the Ray head of this engine.
        provisioning: which nodes there may be, and where their machines come from.
        catalogue: machines.
    """

    def __init__(self, head: AbstractHead, *, provisioning: Provisioning, catalogue: Catalogue) -> None:
        super().__init__(
            head, what=f"cluster {provisioning.definition.name}", label=NODE_LABEL, num_ready=1
        )  # a supervisor
        self._provisioning = provisioning
        self._resources_by_type = {
            name: kind.resources(catalogue) for name, kind in provisioning.definition.node_types.items()
        }

    @override
    def describe(self) -> dict[str, str]:
        definition = self._provisioning.definition
        where = "local processes, simulated" if self.simulates_machines else definition.provider.type.value
        record = self._record
        if record is None:
            return {"engine": f"cluster {definition.name} ({where}), not started"}
        return {"engine": f"cluster {definition.name} ({where}): Ray {ray.__version__} at {record.address}"}

    @property
    @override
    def simulates_machines(self) -> bool:
        return self._provisioning.definition.provider.type is Provider.LOCAL

    @property
    @override
    def provisioning(self) -> Provisioning | None:
        return self._provisioning

    @override
    def simulates(self, accelerator_type: str, *, count: int) -> bool:
        return self.simulates_machines

    @override
    def in_use(self) -> None:
        return None

    @override
    def nodes(self) -> tuple[NodeSpec, ...]:
        def joined() -> tuple[NodeSpec, ...]:
            found: list[dict[str, Any]] = ray.nodes()
            labels = [node.get("Labels", {}) for node in found if node["Alive"]]
            return tuple(
                NodeSpec(
                    name=label[NODE_LABEL],
                    node_type=label[NODE_TYPE_LABEL],
                    resources=self._resources_by_type.get(label[NODE_TYPE_LABEL], {}),
                )
                for label in labels
                if NODE_LABEL in label and NODE_TYPE_LABEL in label
            )

        return self._call(joined)
