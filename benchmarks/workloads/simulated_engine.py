"""A service on a simulated engine: machines and replicas are entries of tables, and programs are periods of time.

``python -m workloads.simulated_engine [the service's own arguments]``. All else is the service itself: the REST
interface, the controller, the database, the webhooks. A replica reports what it uses as often as a real runner does. A
gang ends after the seconds that its program's first argument names.

When each pass of the controller ended, and how long it took, is written to the file `PASSES` in the home.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

from typing_extensions import override

from lockstep.clusters import CLUSTERS, AbstractCluster, AbstractShell
from lockstep.clusters.base import not_running
from lockstep.clusters.choice import EngineChoice
from lockstep.errors import UnavailableError
from lockstep.heartbeat import ProfileRequest
from lockstep.home import Home
from lockstep.jobs.machines.catalogue import Catalogue
from lockstep.jobs.running.orders import (
    GangEnd,
    GangOrder,
    GangOutcome,
    GangPhase,
    GangStatus,
    ProgramEnd,
    ProgramUsage,
    ReplicaPhase,
    ReplicaStatus,
)
from lockstep.jobs.scheduling import NodeSpec
from lockstep.runner.run import USAGE_INTERVAL_S
from lockstep.service.__main__ import main
from lockstep.service.control.pass_times import PassTimes

SIMULATED: Final = "simulated"
MACHINE_TYPE: Final = "n1-standard-4"
NODES_VARIABLE: Final = "BENCHMARK_NUM_NODES"
PASSES: Final = "passes.txt"
START_S: Final = 0.5
"""From a gang's order to its programs."""


@final
@dataclass(kw_only=True)
class _Gang:
    order: GangOrder
    run_s: float
    placed_time_s: float = field(default_factory=time.time)
    stopped_time_s: float | None = None

    def status(self, now_s: float) -> GangStatus:
        started_s = self.placed_time_s + START_S
        if now_s < started_s:
            return GangStatus(gang_id=self.order.gang_id, phase=GangPhase.STARTING)
        ended_s = started_s + self.run_s
        if self.stopped_time_s is not None:
            ended_s = max(started_s, min(ended_s, self.stopped_time_s))
        is_stopped = self.stopped_time_s == ended_s
        if now_s < ended_s:
            return GangStatus(
                gang_id=self.order.gang_id, phase=GangPhase.RUNNING, replicas=self._replicas(now_s, ended_s=None)
            )
        return GangStatus(
            gang_id=self.order.gang_id,
            phase=GangPhase.ENDED,
            replicas=self._replicas(ended_s, ended_s=ended_s),
            end=GangEnd(outcome=GangOutcome.STOPPED if is_stopped else GangOutcome.SUCCEEDED),
        )

    def _replicas(self, now_s: float, *, ended_s: float | None) -> tuple[ReplicaStatus, ...]:
        started_s = self.placed_time_s + START_S
        ran_s = (now_s - started_s) // USAGE_INTERVAL_S * USAGE_INTERVAL_S
        return tuple(
            ReplicaStatus(
                name=replica.name,
                phase=ReplicaPhase.RUNNING if ended_s is None else ReplicaPhase.ENDED,
                host=replica.node,
                pid=1000 + number,
                placed_time_s=self.placed_time_s,
                started_time_s=started_s,
                ended_time_s=ended_s,
                seen_time_s=started_s + ran_s,
                usage=ProgramUsage(cpu_s=3.9 * ran_s, wall_s=ran_s, peak_memory_bytes=2**31),
                metrics={"cpu": 3.9, "memory_bytes": 2.0**31},
                end=None if ended_s is None else ProgramEnd(exit_code=0, tail=("saved the model",)),
            )
            for number, replica in enumerate(self.order.replicas)
        )


@final
class SimulatedCluster(AbstractCluster):
    """An engine of so many equal nodes. Its gangs are gone with its process.

    Args:
        num_nodes: the number of nodes.
        catalogue: the catalogue of machine types.
    """

    def __init__(self, num_nodes: int, *, catalogue: Catalogue) -> None:
        machine = catalogue.machine_type(MACHINE_TYPE)
        resources = {"vcpus": machine.vcpus, "memory_mib": machine.memory_mib}
        self._nodes = tuple(
            NodeSpec(name=f"node-{number:04d}", node_type=MACHINE_TYPE, resources=resources)
            for number in range(num_nodes)
        )
        self._gangs: dict[str, _Gang] = {}
        self._lock = threading.Lock()

    @override
    def start(self) -> None:
        pass

    @override
    def describe(self) -> dict[str, str]:
        return {"engine": f"{len(self._nodes)} simulated nodes"}

    @property
    @override
    def simulates_machines(self) -> bool:
        return False

    @property
    @override
    def provisioning(self) -> None:
        return None

    @override
    def simulates(self, accelerator_type: str, *, count: int) -> bool:
        return True

    @override
    def nodes(self) -> tuple[NodeSpec, ...]:
        return self._nodes

    @override
    def in_use(self) -> None:
        return None

    @override
    def fence(self, generation: int, *, owner: str) -> None:
        pass

    @override
    def place(self, order: GangOrder) -> None:
        with self._lock:
            self._gangs.setdefault(order.gang_id, _Gang(order=order, run_s=float(order.replicas[0].command[-1])))

    @override
    def observe(self, gang_id: str) -> GangStatus | None:
        gang = self._gangs.get(gang_id)
        return None if gang is None else gang.status(time.time())

    @override
    def move(self, gang_id: str, *, replica: str, machine: str) -> None:
        pass

    @override
    def stop(self, gang_id: str) -> None:
        gang = self._gangs.get(gang_id)
        if gang is not None and gang.stopped_time_s is None:
            gang.stopped_time_s = time.time()

    @override
    def collect_leftovers(self, order: GangOrder) -> bool:
        return True

    @override
    def forget(self, gang_id: str) -> None:
        with self._lock:
            self._gangs.pop(gang_id, None)

    @override
    def request_profile(self, gang_id: str, *, replica: str, request: ProfileRequest) -> None:
        raise not_running(replica)

    @override
    def open_shell(self, gang_id: str, *, replica: str) -> AbstractShell:
        raise UnavailableError(f"replica {replica} has no shells: it is simulated")

    @override
    def close(self) -> None:
        pass

    @override
    def shut_down(self) -> None:
        self._gangs.clear()


def open_simulated(*, home: Home, choice: EngineChoice, catalogue: Catalogue) -> SimulatedCluster:
    """Opens the engine, with the number of nodes that the environment names."""
    del home, choice
    return SimulatedCluster(int(os.environ[NODES_VARIABLE]), catalogue=catalogue)


def _write_passes() -> None:
    """Has each pass's end and duration written to the home's file, in seconds."""
    home = next(argument for argument in sys.argv if argument.startswith("--home=")).removeprefix("--home=")
    file, note = (Path(home) / PASSES).open("a", buffering=1), PassTimes.note

    def noted(self: PassTimes, took_s: float) -> None:
        note(self, took_s)
        file.write(f"{time.time()} {took_s}\n")

    patched: Any = PassTimes
    patched.note = noted


if __name__ == "__main__":
    CLUSTERS[SIMULATED] = "workloads.simulated_engine:open_simulated"
    _write_passes()
    sys.exit(main())
