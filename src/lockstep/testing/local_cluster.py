"""A fake cluster engine whose runners are child processes of this process, for tests of the layers above."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, final

from typing_extensions import override

from lockstep.clusters import AbstractCluster, AbstractShell
from lockstep.clusters.base import not_running
from lockstep.clusters.machines import Provisioning
from lockstep.clusters.runner_process import RunnerProcess, ended
from lockstep.clusters.shell_relay import LocalShell
from lockstep.errors import EngineError, UnavailableError
from lockstep.heartbeat import ProfileRequest
from lockstep.jobs.running.orders import (
    NO_ROOM,
    STALE_ORDER,
    Fault,
    GangEnd,
    GangOrder,
    GangOutcome,
    GangPhase,
    GangStatus,
    ProgramEnd,
    ReplicaOrder,
    ReplicaStatus,
    initial_status,
    with_address,
)
from lockstep.jobs.running.supervision import after_report, next_step, order_of_next_launch
from lockstep.jobs.scheduling import NodeSpec, Resources
from lockstep.processes.ports import ReservedAddress, reserve_address
from lockstep.testing.machines import FakeMachines

POLL_S: Final = 0.02


@final
class _Gang:
    def __init__(self, order: GangOrder, *, hold: threading.Event, generation: int) -> None:
        self.order = order
        self.stop_requested = threading.Event()
        self.status = GangStatus(gang_id=order.gang_id, phase=GangPhase.PLACING)
        self._is_stale = order.generation < generation
        self._hold = hold
        self._runners = {replica.name: RunnerProcess() for replica in order.replicas}
        self._statuses: dict[str, ReplicaStatus] = {}
        self._lock = threading.Lock()
        self._held: list[ReservedAddress] = []
        self._orders: dict[str, ReplicaOrder] = {}
        self._runs: dict[str, threading.Thread] = {}
        self._lost_nodes: set[str] = set()
        self._machines = {replica.name: replica.machine for replica in order.replicas}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def known(self) -> tuple[ReplicaStatus, ...]:
        return tuple(self._statuses[r.name] for r in self.order.replicas if r.name in self._statuses)

    def request_profile(self, name: str, request: ProfileRequest) -> bool:
        return name in self._runners and self._runners[name].request_profile(request)

    def lose(self, name: str) -> None:
        """Ends a replica, as an engine does that has lost the replica's node."""
        end = ProgramEnd(problem="its node or launcher was lost (test)", fault=Fault.NODE)
        self._lost_nodes.add(name)
        self._take(ended(self._statuses[name], end))
        self._runners[name].stop()

    def move(self, name: str, machine: str) -> None:
        if name not in self.status.displaced or machine == self._machines[name]:
            return
        held = reserve_address("127.0.0.1")
        self._held.append(held)
        cluster = with_address(self._orders[name], held.address)
        moved = replace(self._orders[name], machine=machine)
        self._orders = {each: replace(order, cluster=cluster) for each, order in {**self._orders, name: moved}.items()}
        self._machines[name] = machine
        self._runners[name] = RunnerProcess()
        self._lost_nodes.discard(name)

    def lose_machine(self, name: str, machine: str) -> None:
        self._machines[name] = machine

    def join(self) -> None:
        self._thread.join(30)

    def _run(self) -> None:
        if self._is_stale:
            self.status = replace(self.status, phase=GangPhase.ENDED, end=STALE_ORDER)
            return
        deadline = time.monotonic() + self.order.place_within_s
        while self._hold.is_set():
            if time.monotonic() > deadline:
                self.status = replace(self.status, phase=GangPhase.ENDED, end=NO_ROOM)
                return
            if self.stop_requested.wait(POLL_S):
                end = GangEnd(outcome=GangOutcome.STOPPED, reason="stopped before it was placed")
                self.status = replace(self.status, phase=GangPhase.ENDED, end=end)
                return
        cluster = self._cluster()
        for replica in self.order.replicas:
            order = self._orders[replica.name] = replace(replica, cluster=cluster)
            self._take(initial_status(order, now_s=time.time()))
        for order in self._orders.values():
            self._launch(order)
        while self.status.end is None:
            step = next_step(
                self.order,
                statuses=dict(self._statuses),
                stop_requested=self.stop_requested.is_set(),
                now_s=time.time(),
                lost_nodes=self._lost_nodes,
            )
            if step.end is not None:
                for run in self._runs.values():
                    run.join()
                for held in self._held:
                    held.close()
            for name in step.stop:
                self._runners[name].stop()
            for name, restart in step.restarts.items():
                if not self._runs[name].is_alive():
                    again = order_of_next_launch(self._orders[name], last=self._statuses[name], restart=restart)
                    self._take(initial_status(again, now_s=time.time()))
                    self._launch(again)
            displaced = {name: self._machines[name] for name in step.displaced}
            self.status = replace(self.status, phase=step.phase, end=step.end, displaced=displaced)
            time.sleep(POLL_S)

    def _launch(self, order: ReplicaOrder) -> None:
        runner = self._runners[order.name]
        run = self._runs[order.name] = threading.Thread(target=lambda: self._take(runner.run(order, report=self._take)))
        run.start()

    def _take(self, status: ReplicaStatus) -> None:
        with self._lock:
            self._statuses[status.name] = after_report(self._statuses.get(status.name), status)

    def _cluster(self) -> dict[str, tuple[str, ...]]:
        cluster: dict[str, tuple[str, ...]] = {}
        for replica in self.order.replicas:
            is_found = replica.role != "evaluator" and len(self.order.replicas) > 1
            if is_found or replica.server is not None:
                held = reserve_address("127.0.0.1")
                self._held.append(held)
                cluster[replica.role] = (*cluster.get(replica.role, ()), held.address)
        return cluster


@final
class LocalCluster(AbstractCluster):
    """Runs gangs as threads and child processes of this process. It passes the cluster conformance suite.

    Gangs end with this object (`shut_down`). With a real engine, they outlive the process that placed them.

    Args:
        gpus: the accelerator types that this cluster claims to have, with their numbers.
        simulates_machines: whether its machine types exist only by name.

    Attributes:
        num_leftover_parts: the number of parts in which unsent data of gangs is left on other machines.
    """

    def __init__(self, *, gpus: dict[str, int] | None = None, simulates_machines: bool = False) -> None:
        self._provisioning: Provisioning | None = None
        self._simulates_machines = simulates_machines
        self._gpus = gpus or {}
        self._gangs: dict[str, _Gang] = {}
        self._forgotten: list[_Gang] = []
        self._hold = threading.Event()
        self._unreachable = False
        self._generations: dict[str, int] = {}
        self._shared: tuple[NodeSpec, ...] = ()
        self._in_use: Mapping[str, Resources] | None = None
        self.num_leftover_parts = 0

    def set_leftover_parts(self, num_parts: int) -> None:
        """Simulates unsent data of gangs on other machines. `fetch_left` fetches it in this number of parts."""
        self.num_leftover_parts = num_parts

    def set_nodes(self, nodes: tuple[NodeSpec, ...], *, in_use: Mapping[str, Resources]) -> None:
        """Sets the nodes of the cluster, and the resources of them that are in use by anyone."""
        self._shared, self._in_use = nodes, in_use

    def hold_placement(self, *, held: bool) -> None:
        """Makes gangs wait to be placed, or lets them be placed."""
        if held:
            self._hold.set()
        else:
            self._hold.clear()

    def set_provisioning(self, provisioning: Provisioning) -> None:
        """Sets the provisioning. From now on, the nodes are the machines of `FakeMachines` that have joined."""
        self._provisioning = provisioning

    def lose_node(self, gang_id: str, *, replica: str | None = None) -> None:
        """Simulates a node that died with a replica of a gang on it. By default, the gang's first replica."""
        gang = self._gangs[gang_id]
        gang.lose(replica or gang.order.replicas[0].name)

    def lose_machine(self, gang_id: str, *, replica: str, machine: str) -> None:
        """Simulates a machine that was lost before the replica that was moved there was launched."""
        self._gangs[gang_id].lose_machine(replica, machine)

    def kill(self) -> None:
        """Simulates an engine that died: its gangs end and are forgotten. It responds again after `start`."""
        self.shut_down()
        self._unreachable = True

    @override
    def start(self) -> None:
        self._unreachable = False

    @override
    def describe(self) -> dict[str, str]:
        return {"engine": "child processes (testing)"}

    @property
    @override
    def simulates_machines(self) -> bool:
        return self._simulates_machines

    @property
    @override
    def provisioning(self) -> Provisioning | None:
        return self._provisioning

    @override
    def simulates(self, accelerator_type: str, *, count: int) -> bool:
        self._check()
        return self._gpus.get(accelerator_type, 0) < count

    @override
    def nodes(self) -> tuple[NodeSpec, ...]:
        if self._provisioning is not None:
            self._check()
            assert isinstance(self._provisioning.machines, FakeMachines)
            joined = self._provisioning.machines.joined
            return tuple(NodeSpec(name=name, node_type=kind, resources={}) for name, kind in joined.items())
        return self._shared or (NodeSpec(name="local", node_type="local", resources=self._gpus),)

    @override
    def in_use(self) -> Mapping[str, Resources] | None:
        return self._in_use

    @override
    def fence(self, generation: int, *, owner: str) -> None:
        self._check()
        self._generations[owner] = max(self._generations.get(owner, 0), generation)

    @override
    def place(self, order: GangOrder) -> None:
        self._check()
        if order.gang_id not in self._gangs:
            current = self._generations.get(order.owner, 0)
            self._gangs[order.gang_id] = _Gang(order, hold=self._hold, generation=current)

    @override
    def observe(self, gang_id: str) -> GangStatus | None:
        self._check()
        gang = self._gangs.get(gang_id)
        if gang is None:
            return None
        has_leftovers = gang.status.phase is GangPhase.ENDED and self.num_leftover_parts > 0
        return replace(gang.status, replicas=gang.known(), has_leftovers=has_leftovers)

    @override
    def move(self, gang_id: str, *, replica: str, machine: str) -> None:
        self._check()
        if gang_id in self._gangs:
            self._gangs[gang_id].move(replica, machine)

    @override
    def stop(self, gang_id: str) -> None:
        self._check()
        if gang_id in self._gangs:
            self._gangs[gang_id].stop_requested.set()

    @override
    def collect_leftovers(self, order: GangOrder) -> bool:
        self._check()
        self.num_leftover_parts = max(0, self.num_leftover_parts - 1)
        return self.num_leftover_parts == 0

    @override
    def forget(self, gang_id: str) -> None:
        self._check()
        gang = self._gangs.pop(gang_id, None)
        if gang is not None:
            gang.stop_requested.set()
            self._forgotten.append(gang)

    @override
    def request_profile(self, gang_id: str, *, replica: str, request: ProfileRequest) -> None:
        self._check()
        gang = self._gangs.get(gang_id)
        if gang is None or not gang.request_profile(replica, request):
            raise not_running(replica)

    @override
    def open_shell(self, gang_id: str, *, replica: str) -> AbstractShell:
        self._check()
        gang = self._gangs.get(gang_id)
        order = next((member for member in gang.order.replicas if member.name == replica), None) if gang else None
        if order is None:
            raise UnavailableError(
                f"replica {replica} accepts no shells now", action="wait until its program is running"
            )
        return LocalShell(order.spool)

    @override
    def close(self) -> None:
        self._unreachable = True

    @override
    def shut_down(self) -> None:
        gangs = [*self._gangs.values(), *self._forgotten]
        self._gangs.clear()
        self._forgotten.clear()
        for gang in gangs:
            gang.stop_requested.set()
        for gang in gangs:
            gang.join()

    def _check(self) -> None:
        if self._unreachable:
            raise EngineError("the test engine is not running")
