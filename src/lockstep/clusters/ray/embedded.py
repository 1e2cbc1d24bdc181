"""The embedded engine: a local Ray that Lockstep starts itself, without any setup."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from typing_extensions import override

from lockstep.clusters.machines import Provisioning
from lockstep.clusters.ray.base import AbstractRayCluster, ray_accelerator_name, ray_version
from lockstep.clusters.ray.head import AbstractHead
from lockstep.home import Home
from lockstep.jobs.input.spec import AcceleratorType
from lockstep.jobs.scheduling import NodeSpec


@final
class EmbeddedRayCluster(AbstractRayCluster):
    """One local Ray on this machine.

    A machine type reserves no cores here. Accelerators that this machine has are reserved; others are simulated by
    virtual CPU devices.

    Args:
        head: the Ray head of this engine.
        home: the home that uses the engine.
        environment: the environment variables that Ray reads when it is imported.
    """

    def __init__(self, head: AbstractHead, *, home: Home, environment: Mapping[str, str]) -> None:
        num_ready = 2  # a supervisor and a launcher
        super().__init__(head, home=home, what="the embedded engine", environment=environment, num_ready=num_ready)

    @override
    def describe(self) -> dict[str, str]:
        record = self._head.find()
        if record is None:
            return {"engine": "embedded Ray, not running"}
        gpus = int(self._resources.get("GPU", 0))
        return {
            "engine": f"embedded Ray {ray_version()} at {record.address}, pid {record.pid}",
            "accelerators": f"{gpus} GPU" if gpus else "none; simulated by virtual CPU devices",
        }

    @property
    @override
    def simulates_machines(self) -> bool:
        return True

    @property
    @override
    def provisioning(self) -> Provisioning | None:
        return None

    @override
    def simulates(self, accelerator_type: str, *, count: int) -> bool:
        here = self._resources.get(f"accelerator_type:{ray_accelerator_name(accelerator_type)}", 0) > 0
        return not (here and self._resources.get("GPU", 0) >= count)

    @override
    def in_use(self) -> None:
        return None

    @override
    def nodes(self) -> tuple[NodeSpec, ...]:
        num_gpus = int(self._resources.get("GPU", 0))
        here = {kind.value: num_gpus for kind in AcceleratorType if not self.simulates(kind.value, count=1)}
        return (NodeSpec(name="local", node_type="local", resources=here),)
