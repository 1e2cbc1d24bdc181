"""The launcher on Ray: a small actor that starts a replica's runner in the bundle that is reserved for the replica.

The actor runs in one of Ray's worker processes, so a change of this code affects only gangs that are placed after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, final

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from lockstep.clusters.ray.head import REPLICA_RESOURCE
from lockstep.clusters.ray.leftovers import AbstractLocalLeftovers
from lockstep.clusters.runner_process import RunnerProcess
from lockstep.clusters.shell_relay import ShellRelay
from lockstep.errors import UnavailableError
from lockstep.heartbeat import ProfileRequest
from lockstep.jobs.running.orders import ORDER, STATUS, ReplicaOrder, ReplicaStatus
from lockstep.processes.ports import ReservedAddress, reserve_address, reserve_again

LAUNCHER_CALLS: Final = 3 + 2 * 8
"""How many calls a launcher handles at once: the runner's whole run, two brief ones, and 2 for each shell."""
CPU_SHARE: Final = 0.0001
TAKE_OVER_S: Final = 30.0
"""How long a new launcher may take to start on a replica's node. If it takes longer, the node counts as lost."""


def replica_resources(order: ReplicaOrder, *, is_shared: bool = False) -> dict[str, float]:
    """Returns the resources that Ray reserves for a replica: its real GPUs, and its cores and memory or a token amount.

    Args:
        order: the replica's order.
        is_shared: whether others use the nodes too. If so, cores and memory are reserved, because others only see
            reservations in Ray.
    """
    if is_shared:
        resources = {"CPU": float(order.vcpus), "memory": float(order.memory_mib << 20)}
    else:
        # Lockstep's scheduler has counted cores and memory already. A bundle may not be empty, so it has a tiny share.
        resources = {"CPU": CPU_SHARE} if order.machine else {REPLICA_RESOURCE: 1.0}
    if order.accelerator_type is not None and not order.simulated:
        resources["GPU"] = float(order.accelerator_count)
    return resources


@final
class Launcher(AbstractLocalLeftovers):
    """Starts a replica's runner on the node where Ray placed this actor, and forwards its reports."""

    def __init__(self) -> None:
        self._runner = RunnerProcess()
        self._held: ReservedAddress | None = None
        self._shells = ShellRelay()
        self._spool = ""

    def reserve_address(self) -> str:
        """Reserves an address for as long as this actor lives, and returns it as "host:port"."""
        self._held = reserve_address(ray.util.get_node_ip_address())
        return self._held.address

    def node(self) -> str:
        """Returns Ray's id of the node on which this actor runs."""
        return ray.get_runtime_context().get_node_id()

    def take_over(self, address: str) -> str:
        """Reserves the address that an earlier launcher held for the replica, and returns it; "" if it had none.

        Raises:
            EngineError: another replica has the address.
        """
        if address:
            self._held = reserve_again(address, timeout_s=TAKE_OVER_S / 2)
        return address

    def launch(self, order_json: str, supervisor: Any) -> str:
        """Runs the runner to its end. Returns the replica's last status as JSON."""
        order = ORDER.validate_json(order_json)
        self._spool = order.spool
        last = self._runner.run(order, report=lambda status: supervisor.report.remote(_json(status)))
        return _json(last)

    def stop(self) -> None:
        """Asks the runner to stop its program. Idempotent; does not wait."""
        self._runner.stop()

    def request_profile(self, request_json: str) -> bool:
        """Passes a `ProfileRequest`, given as JSON, to the runner. Returns whether the runner runs."""
        request = ProfileRequest.from_bytes(request_json.encode())
        return request is not None and self._runner.request_profile(request)

    def open_shell(self) -> str:
        """Connects to the runner. Returns the shell's id, or "" if the runner accepts no shells now."""
        try:
            return self._shells.open(self._spool)
        except UnavailableError:
            return ""

    def send_to_shell(self, shell_id: str, data: bytes) -> bool:
        """Sends bytes to a shell. Returns whether the shell accepted them."""
        try:
            self._shells.send(shell_id, data)
        except UnavailableError:
            return False
        return True

    def receive_from_shell(self, shell_id: str, timeout_s: float) -> bytes | None:
        """Returns the next bytes from a shell; see `AbstractShell.receive`."""
        return self._shells.receive(shell_id, timeout_s=timeout_s)

    def close_shell(self, shell_id: str) -> None:
        """Closes a shell. Idempotent."""
        self._shells.close(shell_id)


def _json(status: ReplicaStatus) -> str:
    return STATUS.dump_json(status).decode()


def reserve(replicas: Sequence[ReplicaOrder], *, label: str | None, is_shared: bool) -> Any:
    """Requests a placement group from Ray, with a bundle for each replica on the machine that its order names.

    Args:
        replicas: the orders of the replicas.
        label: the node label whose values are the ``machine`` of orders; None if orders name no machines.
        is_shared: whether others use the nodes too.
    """
    return placement_group(
        [replica_resources(replica, is_shared=is_shared) for replica in replicas],
        strategy="PACK",
        bundle_label_selector=[{label: replica.machine} if label else {} for replica in replicas],
    )


def make_launcher(order: ReplicaOrder, *, group: Any, position: int, is_shared: bool) -> Any:
    """Starts a launcher as an actor of Ray.

    Args:
        order: the replica's order.
        group: the placement group with the replica's bundle.
        position: the index of the bundle in the group.
        is_shared: whether others use the nodes too.
    """
    resources = replica_resources(order, is_shared=is_shared)
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
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, position),
        )
        .remote()
    )
