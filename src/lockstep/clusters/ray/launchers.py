"""The launchers of a gang on Ray: a thin actor for each replica, and another one where one was lost.

They run in Ray's worker processes, so a change here reaches only gangs that are placed after it.
"""

from __future__ import annotations

import time
from typing import Any, Final, final

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from lockstep.clusters.ray.head import REPLICA_RESOURCE
from lockstep.clusters.ray.left import AbstractLeftHere
from lockstep.clusters.runner_process import RunnerProcess
from lockstep.clusters.shells import ShellRelay
from lockstep.errors import UnavailableError
from lockstep.jobs.orders import ORDER, STATUS, GangOrder, ReplicaOrder, ReplicaStatus
from lockstep.jobs.supervision import restart_alone
from lockstep.processes.ports import HeldAddress, hold_address, hold_again

LAUNCHER_CALLS: Final = 3 + 2 * 8
"""How many calls a launcher answers at once: the runner's life, "stop", an address; two for each shell."""
CPU_SHARE: Final = 0.0001
TAKE_OVER_S: Final = 30.0
"""How long another launcher may take to come up where a replica was; where none does, the node is gone."""


def replica_resources(order: ReplicaOrder, *, is_shared: bool = False) -> dict[str, float]:
    """Returns what Ray reserves for a replica: its GPUs where they are real, and a place to count it by.

    Args:
        order: the replica's.
        is_shared: whether others use the nodes too: they see what is reserved, and nothing else.
    """
    if is_shared:
        resources = {"CPU": float(order.vcpus), "memory": float(order.memory_mib << 20)}
    else:
        # The scheduler has counted cores and memory; a share of a core keeps the bundle from being empty.
        resources = {"CPU": CPU_SHARE} if order.machine else {REPLICA_RESOURCE: 1.0}
    if order.accelerator_type is not None and not order.simulated:
        resources["GPU"] = float(order.accelerator_count)
    return resources


@final
class Launcher(AbstractLeftHere):
    """Starts a replica's runner on the node where Ray placed this actor, and hands its reports on."""

    def __init__(self) -> None:
        self._runner = RunnerProcess()
        self._held: HeldAddress | None = None
        self._shells = ShellRelay()
        self._spool = ""

    def reserve_address(self) -> str:
        """Returns "host:port" that nobody else is given for as long as this actor lives."""
        self._held = hold_address(ray.util.get_node_ip_address())
        return self._held.address

    def node(self) -> str:
        """Returns Ray's id of the node that this actor is on."""
        return ray.get_runtime_context().get_node_id()

    def take_over(self, address: str) -> None:
        """Keeps the address that a launcher before this one kept for the replica; "" where nobody talks to it.

        Raises:
            EngineError: another replica has it.
        """
        if address:
            self._held = hold_again(address, timeout_s=TAKE_OVER_S / 2)

    def launch(self, order_json: str, supervisor: Any) -> str:
        """Runs the runner to its end; returns the replica's last status as JSON."""
        order = ORDER.validate_json(order_json)
        self._spool = order.spool
        last = self._runner.run(order, report=lambda status: supervisor.report.remote(_json(status)))
        return _json(last)

    def stop(self) -> None:
        """Asks the runner to stop its program. Idempotent; does not wait."""
        self._runner.stop()

    def open_shell(self) -> str:
        """Connects to the runner; returns the shell's id, or "" where it takes none now."""
        try:
            return self._shells.open(self._spool)
        except UnavailableError:
            return ""

    def send_to_shell(self, shell_id: str, data: bytes) -> bool:
        """Sends bytes to a shell; returns whether it took them."""
        try:
            self._shells.send(shell_id, data)
        except UnavailableError:
            return False
        return True

    def receive_from_shell(self, shell_id: str, timeout_s: float) -> bytes | None:
        """Returns what a shell sends next; see `AbstractShell.receive`."""
        return self._shells.receive(shell_id, timeout_s=timeout_s)

    def close_shell(self, shell_id: str) -> None:
        """Hangs up. Idempotent."""
        self._shells.close(shell_id)


def _json(status: ReplicaStatus) -> str:
    return STATUS.dump_json(status).decode()


@final
class Launchers:
    """The launchers of one gang, each in its place of the placement group.

    Where one was lost, another may take its place over: on the same node, since others know the replica's address. Ray
    starts that one only when the old one has ended, so that no replica is launched twice.

    Args:
        order: the gang.
        group: the placement group, which has a bundle for each replica.
        is_shared: whether others use the nodes too.

    Attributes:
        lost_places: replicas whose node is gone, or does not answer.
    """

    def __init__(self, order: GangOrder, *, group: Any, is_shared: bool) -> None:
        self._order = order
        self._is_shared = is_shared
        self._group = group
        self._positions = {replica.name: position for position, replica in enumerate(order.replicas)}
        self._actors = {replica.name: self._make(replica.name) for replica in order.replicas}
        self._nodes: dict[str, str] = {}
        self._lost: set[str] = set()
        self._take_overs: dict[str, tuple[Any, float]] = {}
        self.lost_places: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        """Returns a replica's launcher."""
        return self._actors[name]

    def get(self, name: str) -> Any | None:
        """Returns a replica's launcher; None for a name that no replica has."""
        return self._actors.get(name)

    def cluster(self) -> dict[str, tuple[str, ...]]:
        """Asks every replica that others talk to for its address; none for a gang of one. Blocks."""
        replicas = self._order.replicas
        if len(replicas) == 1:
            return {}
        alone = list(restart_alone(self._order))
        found: list[str] = ray.get([self[name].node.remote() for name in alone])
        self._nodes = dict(zip(alone, found, strict=True))
        members = [replica for replica in replicas if replica.role != "evaluator"]
        addresses: list[str] = ray.get([self[replica.name].reserve_address.remote() for replica in members])
        cluster: dict[str, tuple[str, ...]] = {}
        for replica, address in zip(members, addresses, strict=True):
            cluster[replica.role] = (*cluster.get(replica.role, ()), address)
        return cluster

    def answers(self, name: str) -> bool:
        """Whether a replica has a launcher that was not lost."""
        return name not in self._lost and name not in self.lost_places

    def lose(self, name: str) -> None:
        """Notes that a launcher does not answer, or has ended."""
        self._lost.add(name)

    def is_ready(self, name: str, *, address: str) -> bool:
        """Says whether a replica can be launched again; has another launcher take its place over where one was lost.

        Does not block: while that one comes up the answer is no, and where none does, `lost_places` has the replica.

        Args:
            name: the replica.
            address: its address; "" where nobody talks to it.
        """
        if name in self.lost_places:
            return False
        if name not in self._lost:
            return True
        if name not in self._take_overs:
            ray.kill(self._actors[name])
            self._actors[name] = self._make(name)
            call = self._actors[name].take_over.remote(address)
            self._take_overs[name] = (call, time.monotonic() + TAKE_OVER_S)
        call, deadline = self._take_overs[name]
        done, _ = ray.wait([call], timeout=0)
        if not done and time.monotonic() <= deadline and self._is_alive(self._nodes[name]):
            return False
        del self._take_overs[name]
        if not (done and _succeeded(call)):
            self.lost_places.add(name)
            return False
        self._lost.remove(name)
        return True

    def _make(self, name: str) -> Any:
        position = self._positions[name]
        resources = replica_resources(self._order.replicas[position], is_shared=self._is_shared)
        memory_bytes = resources.pop("memory", None)
        return (
            ray.remote(Launcher)
            .options(
                num_cpus=resources.pop("CPU", 0),
                num_gpus=resources.pop("GPU", 0),
                memory=memory_bytes,
                resources=resources,
                max_restarts=0,
                max_concurrency=LAUNCHER_CALLS,
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, position),
            )
            .remote()
        )

    @staticmethod
    def _is_alive(node_id: str) -> bool:
        found: list[dict[str, Any]] = ray.nodes()
        return any(node["NodeID"] == node_id and node["Alive"] for node in found)


def _succeeded(call: Any) -> bool:
    try:
        ray.get(call)
    except RayError:  # an error that the call raised is one, too
        return False
    return True
