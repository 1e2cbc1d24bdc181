"""The two actors of a job on Ray: one detached gang supervisor, and a thin launcher for each replica.

They run in Ray's worker processes, so a change here reaches only gangs that are placed after it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, final

import psutil
import ray
from ray.exceptions import RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from lockstep.clusters.ray.head import REPLICA_RESOURCE
from lockstep.jobs.orders import (
    GANG_ORDER,
    GANG_STATUS,
    ORDER,
    STATUS,
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


def replica_resources(order: ReplicaOrder) -> dict[str, float]:
    """Returns what Ray reserves for a replica: its GPUs where they are real, and a place to count it by."""
    resources = {REPLICA_RESOURCE: 1.0}
    if order.accelerator_type is not None and not order.simulated:
        resources["GPU"] = float(order.accelerator_count)
    return resources


@final
class Launcher:
    """Starts a replica's runner on the node where Ray placed this actor, and hands its reports on."""

    def __init__(self) -> None:
        self._runner: subprocess.Popen[bytes] | None = None
        self._stopped = False
        self._lock = threading.Lock()

    def reserve_address(self) -> str:
        """Returns "host:port" with a port that is free now."""
        host = ray.util.get_node_ip_address()
        with socket.socket() as probe:
            probe.bind((host, 0))
            return f"{host}:{probe.getsockname()[1]}"

    def launch(self, order_json: str, supervisor: Any) -> str:
        """Runs the runner to its end; returns the replica's last status as JSON."""
        order = ORDER.validate_json(order_json)
        last = ReplicaStatus(name=order.name, phase=ReplicaPhase.PLACED, placed_time_s=time.time())
        with self._lock:
            if self._stopped:
                return _json(_ended(last, ProgramEnd(stopped=True, problem="stopped before its program started")))
            try:
                self._runner = self._spawn(order)
            except OSError as error:
                return _json(_ended(last, ProgramEnd(problem=f"its runner could not be started: {error}")))
        assert self._runner.stdin is not None
        assert self._runner.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._runner.stdin.write(ORDER.dump_json(order) + b"\n")
            self._runner.stdin.flush()
        for line in self._runner.stdout:
            last = STATUS.validate_json(line)
            supervisor.report.remote(_json(last))
        code = self._runner.wait()
        if last.phase is not ReplicaPhase.ENDED:
            _end_orphan(last)
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            last = _ended(last, ProgramEnd(problem=f"its runner ended too soon ({how})"))
        return _json(last)

    def stop(self) -> None:
        """Asks the runner to stop its program. Idempotent; does not wait."""
        with self._lock:
            self._stopped = True
            if self._runner is not None and self._runner.stdin is not None:
                with contextlib.suppress(OSError, ValueError):
                    self._runner.stdin.write(b"stop\n")
                    self._runner.stdin.flush()

    @staticmethod
    def _spawn(order: ReplicaOrder) -> subprocess.Popen[bytes]:
        spool = Path(order.spool)
        spool.mkdir(parents=True, exist_ok=True, mode=0o700)
        # The engine's variables, its token's place among them, are not the runner's business.
        env = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "OMP_"))}
        with (spool / "runner.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "lockstep.runner"],
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )


def _json(status: ReplicaStatus) -> str:
    return STATUS.dump_json(status).decode()


def _ended(status: ReplicaStatus, end: ProgramEnd) -> ReplicaStatus:
    return replace(status, phase=ReplicaPhase.ENDED, ended_time_s=time.time(), end=end)


def _end_orphan(status: ReplicaStatus) -> None:
    """Ends the program of a runner that is gone: it is the leader of a session of its own."""
    if status.pid is None:
        return
    with contextlib.suppress(psutil.Error, ProcessLookupError, PermissionError):
        created = psutil.Process(status.pid).create_time()
        if status.started_time_s is not None and abs(created - status.started_time_s) < 5.0:
            os.killpg(status.pid, signal.SIGKILL)


@final
class GangSupervisor:
    """Places one gang, starts it, watches it, and tears it down; detached, so that it needs no service.

    It keeps the gang's last status until the service forgets the gang.
    """

    def __init__(self, order_json: str) -> None:
        self._order: GangOrder = GANG_ORDER.validate_json(order_json)
        self._statuses: dict[str, ReplicaStatus] = {}
        self._stop_requested = threading.Event()
        self._told_to_stop: set[str] = set()
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
        group = placement_group([replica_resources(replica) for replica in self._order.replicas], strategy="PACK")
        try:
            if not self._await_placement(group):
                self._finish(GangEnd(outcome=GangOutcome.STOPPED, reason="stopped before it was placed"))
                return
            launchers = self._place_launchers(group)
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
                    num_cpus=0,
                    num_gpus=resources.pop("GPU", 0),
                    resources=resources,
                    max_restarts=0,
                    max_concurrency=3,
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
            return _ended(last, ProgramEnd(problem=f"its node or launcher was lost ({type(error).__name__})"))

    def _finish(self, end: GangEnd) -> None:
        with self._lock:
            self._status = replace(self._status, phase=GangPhase.ENDED, end=end)
