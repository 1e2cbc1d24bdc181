"""``python -m lockstep.clusters.ray.driver``: the one process of a service that is connected to Ray.

Ray's client library may end the process that it is in. Ray 2.60 calls ``_Exit(1)`` where a message to its node fails
and the process has process 1 as its parent, and it aborts where its control store is away for a minute. So the service
never connects to Ray itself: it starts this process, calls it (see `lockstep.clusters.ray.driver_process`) and replaces
it when it dies or hangs. Nothing is kept here that another such process would miss.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import sys
import threading
import time
from base64 import b64decode, b64encode
from typing import Any, Final, cast, final

import ray
from ray._private.state import available_resources_per_node  # Ray's own word for it; its public API sums over nodes
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.job_config import JobConfig
from typing_extensions import override

from lockstep.clusters.ray.actors import GangSupervisor
from lockstep.clusters.ray.driver_process import CALL_TIMEOUT_S, READ_BYTES, SEND_TIMEOUT_S
from lockstep.clusters.ray.fence import raise_fence
from lockstep.clusters.ray.head import HEAD_RESOURCE
from lockstep.clusters.ray.left import LeftThere, fetch_left
from lockstep.clusters.ray.reserve import WorkerReserve
from lockstep.errors import CorruptDataError
from lockstep.jobs.running.orders import GANG_ORDER

LOGGER: Final = logging.getLogger(__name__)

NAMESPACE: Final = "lockstep"
HEAD_SHARE: Final = 0.0001
BRING_BYTES: Final = 16 * 1024 * 1024
"""How much of what a gang has left is brought at once: the other jobs are looked at in between."""
BRING_S: Final = 3600.0
"""How long a gang that is over is kept for what it has left, where this machine's disk refuses it."""


@final
class _OwnFoldersOnly(JobConfig):
    """Keeps Ray from having the cluster's processes import from this process's working folder, before all else."""

    @override
    def _runtime_env_has_working_dir(self) -> bool:
        return True  # which is what Ray asks before it hands that folder on


@final
class Driver:
    """What a service asks of Ray. Arguments and results are JSON's; any method may be called from any thread.

    Where Ray does not answer, its own errors are raised.

    Args:
        num_ready: how many worker processes Ray is to keep ready on the head's node.
    """

    def __init__(self, *, num_ready: int = 0) -> None:
        self._reserve = WorkerReserve(num_ready, clock=time.monotonic)
        self._refused_since_s: dict[str, float] = {}
        self._shells: dict[str, Any] = {}

    def connect(self, *, address: str) -> dict[str, float]:
        """Connects, once in this process's life; returns what the cluster has in all."""
        ray.init(
            address=address,
            namespace=NAMESPACE,
            log_to_driver=False,
            configure_logging=False,
            job_config=_OwnFoldersOnly(),
        )
        return dict(ray.cluster_resources())

    def look_after(self) -> None:
        """Does what is to be done from time to time. Does not wait for Ray: it says that this process is well."""
        self._reserve.refill()

    def fence(self, *, generation: int, owner: str) -> None:
        """See `AbstractCluster.fence`."""
        raise_fence(generation, owner=owner)

    def place(self, *, order: str, label: str | None, is_shared: bool) -> None:
        """Asks for a gang; see `AbstractCluster.place`.

        Args:
            order: a `GangOrder` as JSON.
            label: the node label whose values are the machines of orders; None where there is but one node.
            is_shared: whether others use the nodes too.
        """
        gang = GANG_ORDER.validate_json(order)
        supervisor = (
            ray.remote(GangSupervisor)
            .options(
                name=gang.gang_id,
                namespace=NAMESPACE,
                lifetime="detached",
                get_if_exists=True,
                num_cpus=0,
                # Beside the head: a node that is lost, or given back, takes no other gang's supervisor with it.
                resources={HEAD_RESOURCE: HEAD_SHARE},
                max_restarts=0,
                max_concurrency=8,
            )
            .remote(order, label=label, is_shared=is_shared)
        )
        ray.get(cast("Any", supervisor).status.remote(), timeout=CALL_TIMEOUT_S)
        self._reserve.take(1 + len(gang.replicas))

    def observe(self, *, gang_id: str) -> str | None:
        """Returns a gang's `GangStatus` as JSON; see `AbstractCluster.observe`."""
        supervisor = self._find(gang_id)
        with contextlib.suppress(RayActorError):
            return None if supervisor is None else ray.get(supervisor.status.remote(), timeout=CALL_TIMEOUT_S)
        return None

    def move(self, *, gang_id: str, replica: str, machine: str) -> None:
        """See `AbstractCluster.move`."""
        supervisor = self._find(gang_id)
        if supervisor is not None:
            supervisor.move.remote(replica, machine)

    def stop(self, *, gang_id: str) -> None:
        """See `AbstractCluster.stop`."""
        supervisor = self._find(gang_id)
        if supervisor is not None:
            supervisor.stop.remote()

    def fetch_left(self, *, order: str) -> bool:
        """See `AbstractCluster.fetch_left`.

        Args:
            order: the gang's `GangOrder` as JSON.
        """
        gang = GANG_ORDER.validate_json(order)
        supervisor = self._find(gang.gang_id)
        num_bytes_left = BRING_BYTES
        for replica in () if supervisor is None else gang.replicas:
            try:
                num_bytes = fetch_left(LeftThere(supervisor), order=replica, at_most_bytes=num_bytes_left)
            except (RayActorError, RayTaskError, CorruptDataError) as error:  # it is gone, or cannot read its disk
                # Of this replica: what the others have left does not stay there with it.
                LOGGER.error("what %s of gang %s has left cannot be brought: %s", replica.name, gang.gang_id, error)
                continue
            except RayError:
                raise
            except OSError as error:
                return self._gives_up(gang.gang_id, error=error)
            num_bytes_left -= num_bytes
            if num_bytes:
                self._refused_since_s.pop(gang.gang_id, None)
            if num_bytes_left <= 0:
                return False
        return True

    def forget(self, *, gang_id: str) -> None:
        """See `AbstractCluster.forget`."""
        supervisor = self._find(gang_id)
        if supervisor is not None:
            ray.kill(supervisor)
        self._refused_since_s.pop(gang_id, None)

    def nodes(self) -> list[dict[str, Any]]:
        """Returns the living nodes' ids, resources and labels, in Ray's words.

        Where this process's own node is not among them, the connection is one to a cluster that is no more: the
        process ends, and another one connects.
        """
        found: list[dict[str, Any]] = ray.nodes()
        alive = [node for node in found if node["Alive"]]
        own = ray.get_runtime_context().get_node_id()
        if own not in [node["NodeID"] for node in alive]:
            LOGGER.error("this process's node of Ray, %s, is lost: it ends", own)
            os._exit(1)
        return [{name: node.get(name, {}) for name in ("NodeID", "Resources", "Labels")} for node in alive]

    def free(self) -> dict[str, dict[str, float]]:
        """Returns what is free of each node, in Ray's words, by the node's id."""
        return available_resources_per_node()

    def open_shell(self, *, gang_id: str, replica: str) -> str | None:
        """Opens a shell and returns its id; None where the replica takes none now."""
        supervisor = self._find(gang_id)
        if supervisor is None:
            return None
        try:
            launcher: Any = ray.get(supervisor.launcher.remote(replica), timeout=CALL_TIMEOUT_S)
            shell_id: Any = launcher and ray.get(launcher.open_shell.remote(), timeout=CALL_TIMEOUT_S)
        except RayActorError:
            return None
        if shell_id:
            self._shells[shell_id] = launcher
        return shell_id or None

    def send_to_shell(self, *, shell_id: str, data: str) -> bool:
        """Sends bytes, in base64, to a shell; returns whether it took them."""
        launcher = self._shells.get(shell_id)
        with contextlib.suppress(RayActorError):
            if launcher is not None:
                return ray.get(launcher.send_to_shell.remote(shell_id, b64decode(data)), timeout=SEND_TIMEOUT_S)
        return False

    def receive_from_shell(self, *, shell_id: str, timeout_s: float) -> str | None:
        """Returns what a shell sends next, in base64; see `AbstractShell.receive`."""
        launcher = self._shells.get(shell_id)
        with contextlib.suppress(RayActorError):  # the replica is over, and its launcher with it
            if launcher is not None:
                asked = launcher.receive_from_shell.remote(shell_id, timeout_s)
                data: Any = ray.get(asked, timeout=timeout_s + CALL_TIMEOUT_S)
                return None if data is None else b64encode(data).decode()
        return None

    def close_shell(self, *, shell_id: str) -> None:
        """Hangs up. Idempotent."""
        launcher = self._shells.pop(shell_id, None)
        if launcher is not None:
            launcher.close_shell.remote(shell_id)

    def _gives_up(self, gang_id: str, *, error: OSError) -> bool:
        """Notes that this machine's disk refuses what a gang has left; returns whether it did for too long."""
        now_s = time.monotonic()
        if gang_id not in self._refused_since_s:
            self._refused_since_s[gang_id] = now_s
            LOGGER.warning("what gang %s has left has no room here for now: %s", gang_id, error)
        if now_s - self._refused_since_s[gang_id] < BRING_S:
            return False
        LOGGER.error("what gang %s has left is given up, as it has no room here: %s", gang_id, error)
        return True

    @staticmethod
    def _find(gang_id: str) -> Any | None:
        with contextlib.suppress(ValueError):  # Ray's way to say that there is none
            return ray.get_actor(gang_id, namespace=NAMESPACE)
        return None


def answer(driver: Driver, connection: socket.socket) -> None:
    """Reads one call from a connection to its end, makes it, and writes what it returned, or why it did not.

    Args:
        driver: what is called.
        connection: closed when this returns.
    """
    with connection:
        call: dict[str, Any] = json.loads(b"".join(iter(lambda: connection.recv(READ_BYTES), b"")))
        try:
            said = {"result": getattr(driver, call["name"])(**call["arguments"])}
        except Exception as error:  # of whatever kind: it is the caller's to know
            if not isinstance(error, (RayError, OSError)):  # a fault of ours, or a Ray that is not known
                LOGGER.exception("%s failed", call["name"])
            said = {"error": f"{type(error).__name__}: {error}"}
        with contextlib.suppress(OSError):  # who called waits no longer
            connection.sendall(json.dumps(said).encode())


def serve(control: socket.socket, driver: Driver) -> None:
    """Answers calls until the other end of a socket is closed: the service has ended, or has done with this process.

    Args:
        control: brings a connection for each call.
        driver: what is called.
    """
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not data:
            return
        for descriptor in descriptors:
            # A thread for each: one that waits for Ray holds up no other call.
            arguments = (driver, socket.socket(fileno=descriptor))
            threading.Thread(target=answer, args=arguments, daemon=True).start()


def main(arguments: list[str]) -> None:
    """Runs the process to its end.

    Args:
        arguments: the descriptor of the socket that brings calls, and how many worker processes to keep ready.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # It would warn that it takes no signals in a thread, whenever one connects.
    logging.getLogger("ray._private.worker").setLevel(logging.ERROR)
    descriptor, num_ready = (int(argument) for argument in arguments)
    os.set_inheritable(descriptor, False)
    serve(socket.socket(fileno=descriptor), Driver(num_ready=num_ready))
    os._exit(0)  # not through Ray's own end, which would wait for its node


if __name__ == "__main__":
    main(sys.argv[1:])
