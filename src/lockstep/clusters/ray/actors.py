"""The two actors of a job on Ray: one detached gang supervisor, and a thin launcher for each replica.

They run in Ray's worker processes, so a change here reaches only gangs that are placed after it.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any, Final, final

import ray
from ray.exceptions import RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from lockstep.clusters.ports import HeldAddress, hold_address
from lockstep.clusters.ray.fence import current_generation
from lockstep.clusters.ray.head import REPLICA_RESOURCE
from lockstep.clusters.runner_process import RunnerProcess, ended
from lockstep.clusters.shells import ShellRelay
from lockstep.errors import UnavailableError
from lockstep.jobs.orders import (
    GANG_ORDER,
    GANG_STATUS,
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
    ReplicaPhase,
    ReplicaStatus,
)
from lockstep.jobs.supervision import next_step

POLL_S: Final = 0.2
LAUNCHER_CALLS: Final = 3 + 2 * 8
"""How many calls a launcher answers at once: the runner's life, "stop", an address; two for each shell."""
CPU_SHARE: Final = 0.0001


def replica_resources(order: ReplicaOrder) -> dict[str, float]:
    """Returns what Ray reserves for a replica: its GPUs where they are real, and a place to count it by."""
    # The scheduler has counted cores and memory; a share of a core keeps the bundle from being empty.
    resources = {"CPU": CPU_SHARE} if order.machine else {REPLICA_RESOURCE: 1.0}
    if order.accelerator_type is not None and not order.simulated:
        resources["GPU"] = float(order.accelerator_count)
    return resources


@final
class Launcher:
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
class GangSupervisor:
    """Places one gang, starts it, watches it, and tears it down; detached, so that it needs no service.

    It keeps the gang's last status until the service forgets the gang.
    """

    def __init__(self, order_json: str, label: str | None) -> None:
        self._order: GangOrder = GANG_ORDER.validate_json(order_json)
        self._label = label
        self._statuses: dict[str, ReplicaStatus] = {}
        self._stop_requested = threading.Event()
        self._told_to_stop: set[str] = set()
        self._launchers: dict[str, Any] = {}
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
        """Takes a launcher's report of one replica."""
        self._take(STATUS.validate_json(status_json))

    def stop(self) -> None:
        """Asks the gang to end."""
        self._stop_requested.set()

    def launcher(self, replica: str) -> Any | None:
        """Returns a replica's launcher; None while it has none."""
        return self._launchers.get(replica)

    def _take(self, status: ReplicaStatus) -> None:
        with self._lock:
            known = self._statuses.get(status.name)
            if known is None or known.phase is not ReplicaPhase.ENDED:  # the last word stands
                self._statuses[status.name] = status

    def _run(self) -> None:
        try:
            self._supervise()
        except Exception as error:
            # Whatever it was, the service must hear of it: a supervisor that died silently would be a job that hangs.
            self._finish(GangEnd(outcome=GangOutcome.FAILED, reason=f"gang supervisor: {error!r}"))
            raise

    def _supervise(self) -> None:
        if self._order.generation < current_generation():
            self._finish(STALE_ORDER)
            return
        replicas = self._order.replicas
        group = placement_group(
            [replica_resources(replica) for replica in replicas],
            strategy="PACK",
            bundle_label_selector=[{self._label: replica.machine} if self._label else {} for replica in replicas],
        )
        try:
            if not self._await_placement(group):
                self._finish(GangEnd(outcome=GangOutcome.STOPPED, reason="stopped before it was placed"))
                return
            launchers = self._launchers = self._place_launchers(group)
            self._watch(launchers)
        finally:
            remove_placement_group(group)  # ends the launchers with it

    def _await_placement(self, group: Any) -> bool:
        ready = group.ready()
        while not self._stop_requested.is_set():
            done, _ = ray.wait([ready], timeout=POLL_S)
            if done:
                return True
        return False

    def _place_launchers(self, group: Any) -> dict[str, Any]:
        launchers: dict[str, Any] = {}
        for position, replica in enumerate(self._order.replicas):
            resources = replica_resources(replica)
            launchers[replica.name] = (
                ray.remote(Launcher)
                .options(
                    num_cpus=resources.pop("CPU", 0),
                    num_gpus=resources.pop("GPU", 0),
                    resources=resources,
                    max_restarts=0,
                    max_concurrency=LAUNCHER_CALLS,
                    scheduling_strategy=PlacementGroupSchedulingStrategy(group, position),
                )
                .remote()
            )
        return launchers

    def _cluster(self, launchers: dict[str, Any]) -> dict[str, tuple[str, ...]]:
        """Asks every replica that others talk to for its address; none for a gang of one."""
        members = [replica for replica in self._order.replicas if replica.role != "evaluator"]
        if len(self._order.replicas) == 1:
            return {}
        addresses = ray.get([launchers[replica.name].reserve_address.remote() for replica in members])
        cluster: dict[str, tuple[str, ...]] = {}
        for replica, address in zip(members, addresses, strict=True):
            cluster[replica.role] = (*cluster.get(replica.role, ()), address)
        return cluster

    def _watch(self, launchers: dict[str, Any]) -> None:
        for name in launchers:
            self._take(ReplicaStatus(name=name, phase=ReplicaPhase.PLACED, placed_time_s=time.time()))
        cluster = self._cluster(launchers)
        runs = {
            launchers[replica.name].launch.remote(
                ORDER.dump_json(replace(replica, cluster=cluster)).decode(), self._me
            ): replica.name
            for replica in self._order.replicas
        }
        while True:
            done, _ = ray.wait(list(runs), num_returns=1, timeout=POLL_S) if runs else ([], [])
            for run in done:
                self._take(self._last_status(run, runs.pop(run)))
            with self._lock:
                step = next_step(
                    self._order,
                    statuses=dict(self._statuses),
                    stop_requested=self._stop_requested.is_set(),
                    now_s=time.time(),
                )
                if step.end is None:
                    self._status = replace(self._status, phase=step.phase)
            if step.end is not None and not runs:
                self._finish(step.end)
                return
            for name in set(step.stop) - self._told_to_stop:
                self._told_to_stop.add(name)
                launchers[name].stop.remote()

    def _last_status(self, run: Any, name: str) -> ReplicaStatus:
        try:
            return STATUS.validate_json(ray.get(run))
        except RayError as error:
            last = self._statuses[name]
            return ended(
                last, ProgramEnd(problem=f"its node or launcher was lost ({type(error).__name__})", fault=Fault.NODE)
            )

    def _finish(self, end: GangEnd) -> None:
        with self._lock:
            self._status = replace(self._status, phase=GangPhase.ENDED, end=end)
