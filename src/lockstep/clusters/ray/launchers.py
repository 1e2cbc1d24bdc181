"""The launchers of a gang on Ray: one for each replica. A lost launcher is replaced, on its node or on another one."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Any, Final, final

import ray
from ray.exceptions import RayError
from ray.util.placement_group import remove_placement_group

from lockstep.clusters.ray.launcher import TAKE_OVER_S, make_launcher, reserve
from lockstep.errors import EngineError
from lockstep.jobs.running.orders import GangOrder, ReplicaOrder
from lockstep.jobs.running.supervision import movable_replicas, restartable_alone

LOGGER: Final = logging.getLogger(__name__)


@final
class _StartingLauncher:
    """A launcher that is starting on another machine.

    Args:
        order: the replica's order, with the new machine.
        label: see `reserve`.
        is_shared: whether others use the nodes too.
        has_address: whether other replicas connect to the replica.
        within_s: how long the launcher may take to be placed, in seconds.
    """

    def __init__(
        self, order: ReplicaOrder, *, label: str | None, is_shared: bool, has_address: bool, within_s: float
    ) -> None:
        self.machine = order.machine
        self.group = reserve([order], label=label, is_shared=is_shared)
        self.launcher: Any = None
        self._order = order
        self._is_shared = is_shared
        self._has_address = has_address
        self._awaited: list[Any] = [self.group.ready()]
        self._deadline = time.monotonic() + within_s

    def poll(self) -> tuple[str, str] | None:
        """Returns the launcher's node id, and the replica's address or ""; None while the launcher is starting.

        Raises:
            RayError: the launcher could not be started.
            EngineError: the launcher was not started within its time.
        """
        if len(ray.wait(self._awaited, num_returns=len(self._awaited), timeout=0)[1]):
            if time.monotonic() > self._deadline:
                raise EngineError(f"there was no room on {self.machine}")
            return None
        found: list[Any] = ray.get(self._awaited)
        if self.launcher is not None:
            return found[0], found[1] if self._has_address else ""
        self.launcher = make_launcher(self._order, group=self.group, position=0, is_shared=self._is_shared)
        self._awaited = [self.launcher.node.remote()]
        if self._has_address:
            self._awaited.append(self.launcher.reserve_address.remote())
        return None


@final
class Launchers:
    """The launchers of one gang, each in its bundle of a placement group.

    If a launcher was lost, a new one may take over its bundle. It is on the same node, because others know the
    replica's address. Ray starts the new launcher only after the old one has ended, so no replica is launched twice. A
    replica that can move may also get a launcher on another machine, with a placement group of its own.

    Args:
        order: the gang's order.
        group: the placement group, which has a bundle for each replica.
        label: the node label whose values are the ``machine`` of orders; None if orders name no machines.
        is_shared: whether others use the nodes too.

    Attributes:
        lost_nodes: the names of replicas whose node is gone or does not answer.
        machines: the last machine of each replica: where it ran, or was to run.
    """

    def __init__(self, order: GangOrder, *, group: Any, label: str | None, is_shared: bool) -> None:
        self._order = order
        self._label = label
        self._is_shared = is_shared
        self._replicas = {replica.name: replica for replica in order.replicas}
        self._places = {replica.name: (group, position) for position, replica in enumerate(order.replicas)}
        self._actors = {name: self._make(name) for name in self._replicas}
        self._nodes: dict[str, str] = {}
        self._lost: set[str] = set()
        self._take_overs: dict[str, tuple[Any, float]] = {}
        self._refused: set[str] = set()
        self._movable_replicas = movable_replicas(order)
        self._own_groups: dict[str, Any] = {}
        self._starting: dict[str, _StartingLauncher] = {}
        self.lost_nodes: set[str] = set()
        self.machines = {replica.name: replica.machine for replica in order.replicas}

    def __getitem__(self, name: str) -> Any:
        """Returns a replica's launcher."""
        return self._actors[name]

    def get(self, name: str) -> Any | None:
        """Returns a replica's launcher; None if no replica has this name."""
        return self._actors.get(name)

    def cluster(self) -> dict[str, tuple[str, ...]]:
        """Returns the addresses of the replicas that others connect to, by role; empty for a gang of one. Blocks."""
        alone = list(restartable_alone(self._order))
        found: list[str] = ray.get([self[name].node.remote() for name in alone])
        self._nodes = dict(zip(alone, found, strict=True))
        members = [replica for replica in self._order.replicas if self._has_address(replica)]
        addresses: list[str] = ray.get([self[replica.name].reserve_address.remote() for replica in members])
        cluster: dict[str, tuple[str, ...]] = {}
        for replica, address in zip(members, addresses, strict=True):
            cluster[replica.role] = (*cluster.get(replica.role, ()), address)
        return cluster

    def answers(self, name: str) -> bool:
        """Returns whether a replica has a launcher that was not lost."""
        return name not in self._lost and name not in self.lost_nodes

    def lose(self, name: str) -> None:
        """Records that a launcher does not answer or has ended."""
        self._lost.add(name)

    def address_if_ready(self, name: str, *, address: str) -> str | None:
        """Returns a replica's address once it can be launched again; replaces its launcher if that was lost.

        Does not block; to be called repeatedly. If no new launcher starts, the replica is added to `lost_nodes`.
        However, a replica that can move is tried again with another address as long as its node is alive.

        Args:
            name: the name of the replica.
            address: the replica's address; "" if no other replica connects to it.

        Returns:
            The replica's address from now on; None while it cannot be launched.
        """
        if name in self.lost_nodes:
            return None
        if name not in self._lost:
            return address
        if name not in self._take_overs:
            ray.kill(self._actors[name])
            self._actors[name] = launcher = self._make(name)
            keeps = not address or name not in self._refused
            call = launcher.take_over.remote(address) if keeps else launcher.reserve_address.remote()
            self._take_overs[name] = (call, time.monotonic() + TAKE_OVER_S)
        call, deadline = self._take_overs[name]
        done, _ = ray.wait([call], timeout=0)
        is_alive = self._is_alive(self._nodes[name])
        if not done and time.monotonic() <= deadline and is_alive:
            return None
        del self._take_overs[name]
        try:
            if done:
                address = ray.get(call)
                self._lost.remove(name)
                self._refused.discard(name)
                return address
        except RayError as error:  # includes errors that the call itself raised
            LOGGER.warning("%s was not launched where it was: %s", name, error)
        if is_alive and name in self._movable_replicas:
            self._refused.add(name)
        else:
            self.lost_nodes.add(name)
        return None

    def move(self, name: str, *, machine: str) -> str | None:
        """Starts a launcher on another machine for a replica that has lost its own.

        Does not block. Call it until it returns an address, or until `machines` has the new machine for this replica,
        which means that the new machine is lost too.

        Args:
            name: the name of the replica.
            machine: the name of the new machine.

        Returns:
            The replica's address on the new machine, "" if no other replica connects to it; None while the launcher is
            starting.
        """
        if machine == self.machines[name]:
            return None
        starting = self._starting.get(name)
        if starting is None or starting.machine != machine:
            self._discard_starting(name)
            order = replace(self._replicas[name], machine=machine)
            starting = self._starting[name] = _StartingLauncher(
                order,
                label=self._label,
                is_shared=self._is_shared,
                has_address=self._has_address(order),
                within_s=self._order.place_within_s,
            )
        try:
            found = starting.poll()
        except (RayError, EngineError) as error:
            LOGGER.warning("%s was not launched on %s: %s", name, machine, error)
            self._discard_starting(name)
            if not self._is_up(machine):
                self.machines[name] = machine
            return None
        if found is None:
            return None
        self._nodes[name], address = found
        self._replace_launcher(name, self._starting.pop(name))
        return address

    def remove_groups(self) -> None:
        """Removes the placement groups of moved replicas, which ends their launchers. Idempotent."""
        for name in [*self._starting]:
            self._discard_starting(name)
        while self._own_groups:
            remove_placement_group(self._own_groups.popitem()[1])

    def _replace_launcher(self, name: str, starting: _StartingLauncher) -> None:
        before = self._own_groups.pop(name, None)
        if before is not None:
            remove_placement_group(before)
        self._own_groups[name] = starting.group
        self._places[name] = (starting.group, 0)
        self._actors[name] = starting.launcher
        self.machines[name] = starting.machine
        self._lost.discard(name)
        self.lost_nodes.discard(name)

    def _discard_starting(self, name: str) -> None:
        starting = self._starting.pop(name, None)
        if starting is not None:
            remove_placement_group(starting.group)

    def _make(self, name: str) -> Any:
        group, position = self._places[name]
        return make_launcher(self._replicas[name], group=group, position=position, is_shared=self._is_shared)

    def _has_address(self, replica: ReplicaOrder) -> bool:
        return replica.server is not None or (len(self._replicas) > 1 and replica.role != "evaluator")

    def _is_up(self, machine: str) -> bool:
        found: list[dict[str, Any]] = ray.nodes()
        return any(node["Alive"] and node.get("Labels", {}).get(self._label) == machine for node in found)

    @staticmethod
    def _is_alive(node_id: str) -> bool:
        found: list[dict[str, Any]] = ray.nodes()
        return any(node["NodeID"] == node_id and node["Alive"] for node in found)
