"""The provisioned engine: a Ray cluster that Lockstep owns, whose nodes are created and removed on demand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from typing_extensions import override

from lockstep.clusters.machines import Provisioning
from lockstep.clusters.ray.base import AbstractRayCluster, ray_version
from lockstep.clusters.ray.head import AbstractHead
from lockstep.clusters.ray.node_start import NODE_LABEL, NODE_TYPE_LABEL
from lockstep.home import Home
from lockstep.jobs.machines.catalogue import Catalogue
from lockstep.jobs.provisioning import Provider
from lockstep.jobs.scheduling import NodeSpec


@final
class ProvisionedRayCluster(AbstractRayCluster):
    """A head on the service's machine, and nodes on machines of a provider. The head itself holds no replicas.

    Args:
        head: the Ray head of this engine.
        home: the home that uses the engine.
        environment: the environment variables that Ray reads when it is imported.
        provisioning: the nodes that the cluster may have, and the provider of their machines.
        catalogue: the catalogue of machine types.
    """

    def __init__(
        self,
        head: AbstractHead,
        *,
        home: Home,
        environment: Mapping[str, str],
        provisioning: Provisioning,
        catalogue: Catalogue,
    ) -> None:
        super().__init__(
            head,
            home=home,
            what=f"cluster {provisioning.definition.name}",
            environment=environment,
            label=NODE_LABEL,
            num_ready=1,  # a supervisor
        )
        self._provisioning = provisioning
        self._resources_by_type = {
            name: kind.resources(catalogue) for name, kind in provisioning.definition.node_types.items()
        }

    @override
    def describe(self) -> dict[str, str]:
        definition = self._provisioning.definition
        where = "local processes, simulated" if self.simulates_machines else definition.provider.type.value
        record = self._head.find()
        if record is None:
            return {"engine": f"cluster {definition.name} ({where}), not running"}
        return {"engine": f"cluster {definition.name} ({where}): Ray {ray_version()} at {record.address}"}

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
        found: list[dict[str, Any]] = self._ask("nodes")
        labels: list[dict[str, str]] = [node["Labels"] for node in found]
        return tuple(
            NodeSpec(
                name=label[NODE_LABEL],
                node_type=label[NODE_TYPE_LABEL],
                resources=self._resources_by_type.get(label[NODE_TYPE_LABEL], {}),
            )
            for label in labels
            if NODE_LABEL in label and NODE_TYPE_LABEL in label
        )
