"""The gang supervisor on Ray: one detached actor for each gang.

The actor runs in one of Ray's worker processes, so a change of this code affects only gangs that are placed after it.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from typing import Any, Final, final

import ray
from ray.exceptions import RayError
from ray.util.placement_group import remove_placement_group

from lockstep.clusters.ray.fence import current_generation
from lockstep.clusters.ray.launcher import reserve
from lockstep.clusters.ray.launchers import Launchers
from lockstep.clusters.ray.leftovers import AbstractLocalLeftovers, RemoteLeftovers, copy_leftovers, has_leftovers
from lockstep.clusters.runner_process import ended
from lockstep.errors import CorruptDataError
from lockstep.jobs.running.orders import (
    GANG_ORDER,
    GANG_STATUS,
    NO_ROOM,
    ORDER,
    STALE_ORDER,
    STATUS,
    Fault,
    GangEnd,
    GangOrder,
    GangOutcome,
    GangPhase,
    GangStatus,
    ProgramEnd,
    ReplicaOrder,
    ReplicaStatus,
    address_of,
    initial_status,
    with_address,
)
from lockstep.jobs.running.supervision import Step, after_report, next_step, order_of_next_launch

LOGGER: Final = logging.getLogger(__name__)

POLL_S: Final = 0.2
COLLECT_TIMEOUT_S: Final = 600.0
"""How long a gang's end is delayed, and its nodes are kept, while the supervisor's disk refuses leftover segments."""


@final
class GangSupervisor(AbstractLocalLeftovers):
    """Places one gang, starts it, watches it, and tears it down. Detached: it runs on without a service.

    The supervisor keeps the gang's last status until the service forgets the gang.
    """

    def __init__(self, order_json: str, *, label: str | None, is_shared: bool) -> None:
        self._order: GangOrder = GANG_ORDER.validate_json(order_json)
        self._label = label
        self._is_shared = is_shared
        self._statuses: dict[str, ReplicaStatus] = {}
        self._stop_requested = threading.Event()
        self._moves: dict[str, str] = {}
        self._launchers: Launchers | None = None
        self._lock = threading.Lock()
        self._status = GangStatus(gang_id=self._order.gang_id, phase=GangPhase.PLACING)
        self._me = ray.get_runtime_context().current_actor
        threading.Thread(target=self._run, name="gang", daemon=True).start()

    def status(self) -> str:
        """Returns the gang's `GangStatus` as JSON."""
        with self._lock:
            known = tuple(self._statuses[r.name] for r in self._order.replicas if r.name in self._statuses)
            return GANG_STATUS.dump_json(replace(self._status, replicas=known)).decode()

    def report(self, status_json: str) -> None:
        """Records a launcher's report of one replica."""
        self._take(STATUS.validate_json(status_json))

    def stop(self) -> None:
        """Requests the end of the gang."""
        self._stop_requested.set()

    def move(self, replica: str, machine: str) -> None:
        """Assigns another machine to a replica that has lost its own; see `AbstractCluster.move`."""
        with self._lock:
            self._moves[replica] = machine

    def launcher(self, replica: str) -> Any | None:
        """Returns a replica's launcher; None while it has none."""
        return None if self._launchers is None else self._launchers.get(replica)

    def _take(self, status: ReplicaStatus) -> None:
        with self._lock:
            self._statuses[status.name] = after_report(self._statuses.get(status.name), status)

    def _run(self) -> None:
        try:
            self._supervise()
        except Exception as error:
            # The service must learn of any error: if the supervisor died silently, the job would hang.
            self._finish(GangEnd(outcome=GangOutcome.FAILED, reason=f"gang supervisor: {error!r}"))
            raise

    def _supervise(self) -> None:
        if self._order.generation < current_generation(self._order.owner):
            self._finish(STALE_ORDER)
            return
        group = reserve(self._order.replicas, label=self._label, is_shared=self._is_shared)
        try:
            unplaced = self._await_placement(group)
            if unplaced is not None:
                self._finish(unplaced)
                return
            self._launchers = Launchers(self._order, group=group, label=self._label, is_shared=self._is_shared)
            self._watch(self._launchers)
        finally:
            remove_placement_group(group)  # also ends the launchers
            if self._launchers is not None:
                self._launchers.remove_groups()

    def _await_placement(self, group: Any) -> GangEnd | None:
        """Waits until the gang is placed. Returns None then, or the gang's end if it has no room or is stopped."""
        ready = group.ready()
        deadline = time.monotonic() + self._order.place_within_s
        while not self._stop_requested.is_set():
            done, _ = ray.wait([ready], timeout=POLL_S)
            if done:
                return None
            if time.monotonic() > deadline:
                return NO_ROOM
        return GangEnd(outcome=GangOutcome.STOPPED, reason="stopped before it was placed")

    def _watch(self, launchers: Launchers) -> None:
        now_s = time.time()
        for replica in self._order.replicas:
            self._take(initial_status(replica, now_s=now_s))
        cluster = launchers.cluster()
        orders = {replica.name: replace(replica, cluster=cluster) for replica in self._order.replicas}
        runs = {self._launch(launchers, order): name for name, order in orders.items()}
        stop_sent: set[str] = set()
        while True:
            done = ray.wait(list(runs), num_returns=1, timeout=POLL_S)[0] if runs else []
            for run in done:
                self._take(self._last_status(launchers, run, runs.pop(run)))
            step = self._decide(launchers)
            if step.end is not None and not runs:
                self._collect_leftovers(launchers)
                self._finish(step.end)
                return
            for name in set(step.stop) - stop_sent:
                stop_sent.add(name)
                launchers[name].stop.remote()
            for name, restart in step.restarts.items():
                # A runner's last report may arrive before its launcher has seen the runner end.
                if name in runs.values():
                    continue
                address = launchers.address_if_ready(name, address=address_of(orders[name]))
                if address is not None:
                    orders = _with_address(orders, name, address)
                    again = order_of_next_launch(orders[name], last=self._statuses[name], restart=restart)
                    self._take(initial_status(again, now_s=time.time()))
                    runs[self._launch(launchers, again)] = name
            for name in step.displaced:
                orders = self._apply_move(launchers, name, orders=orders)
            if not runs:
                time.sleep(POLL_S)  # waiting for a launcher

    def _apply_move(
        self, launchers: Launchers, name: str, *, orders: dict[str, ReplicaOrder]
    ) -> dict[str, ReplicaOrder]:
        """Moves a displaced replica, if it can be moved now. Returns all replicas' orders for their next launches."""
        machine = self._moves.get(name)
        address = None if machine is None else launchers.move(name, machine=machine)
        if machine is None or address is None:
            return orders
        return _with_address({**orders, name: replace(orders[name], machine=machine)}, name, address)

    def _launch(self, launchers: Launchers, order: ReplicaOrder) -> Any:
        return launchers[order.name].launch.remote(ORDER.dump_json(order).decode(), self._me)

    def _decide(self, launchers: Launchers) -> Step:
        with self._lock:
            step = next_step(
                self._order,
                statuses=dict(self._statuses),
                stop_requested=self._stop_requested.is_set(),
                now_s=time.time(),
                lost_nodes=launchers.lost_nodes,
            )
            if step.end is None:
                displaced = {name: launchers.machines[name] for name in step.displaced}
                self._status = replace(self._status, phase=step.phase, displaced=displaced)
            return step

    def _last_status(self, launchers: Launchers, run: Any, name: str) -> ReplicaStatus:
        try:
            return STATUS.validate_json(ray.get(run))
        except RayError as error:
            launchers.lose(name)
            problem = f"its node or launcher was lost ({type(error).__name__})"
            return ended(self._statuses[name], ProgramEnd(problem=problem, fault=Fault.NODE))

    def _collect_leftovers(self, launchers: Launchers) -> None:
        """Copies leftover segments from the gang's nodes to this one, before those nodes go. Lost nodes are skipped."""
        waiting = [replica for replica in self._order.replicas if launchers.answers(replica.name)]
        deadline = time.monotonic() + COLLECT_TIMEOUT_S
        while waiting and time.monotonic() < deadline:
            refused = []
            for replica in waiting:
                try:
                    copy_leftovers(RemoteLeftovers(launchers[replica.name]), order=replica)
                except (RayError, CorruptDataError) as error:  # first: the other node's errors may be OSErrors too
                    LOGGER.warning("cannot copy the leftover segments of %s: %s", replica.name, error)
                except OSError as error:
                    LOGGER.warning(
                        "the leftover segments of %s cannot be stored on this disk yet: %s", replica.name, error
                    )
                    refused.append(replica)
            waiting = refused
            if waiting:
                time.sleep(POLL_S)

    def _finish(self, end: GangEnd) -> None:
        are_left = has_leftovers(self._order.replicas)
        with self._lock:
            self._status = replace(self._status, phase=GangPhase.ENDED, end=end, displaced={}, has_leftovers=are_left)


def _with_address(orders: dict[str, ReplicaOrder], name: str, address: str) -> dict[str, ReplicaOrder]:
    """Returns all replicas' orders for their next launches, with a new address of one replica."""
    if address == address_of(orders[name]):
        return orders
    cluster = with_address(orders[name], address)
    return {each: replace(order, cluster=cluster) for each, order in orders.items()}
