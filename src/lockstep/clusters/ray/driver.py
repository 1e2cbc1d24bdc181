"""``python -m lockstep.clusters.ray.driver``: the only process of a service that is connected to Ray.

Ray's client library may end its process. Ray 2.60 calls ``_Exit(1)`` if a message to its node fails while the process's
parent is process 1, and it aborts if its control store is unavailable for a minute. So the service never connects to
Ray itself: it starts this process, calls it (see `lockstep.clusters.ray.driver_process`) and replaces it when it dies
or hangs. The process keeps no state that its replacement would need.
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
from ray._private.state import available_resources_per_node  # private: Ray's public API only has the sum over nodes
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.job_config import JobConfig
from typing_extensions import override

from lockstep.clusters.ray.actors import GangSupervisor
from lockstep.clusters.ray.driver_process import CALL_TIMEOUT_S, READ_BYTES, SEND_TIMEOUT_S
from lockstep.clusters.ray.fence import raise_fence
from lockstep.clusters.ray.head import HEAD_RESOURCE
from lockstep.clusters.ray.leftovers import RemoteLeftovers, copy_leftovers
from lockstep.clusters.ray.reserve import WorkerReserve
from lockstep.errors import CorruptDataError
from lockstep.jobs.running.orders import GANG_ORDER

LOGGER: Final = logging.getLogger(__name__)

NAMESPACE: Final = "lockstep"
HEAD_SHARE: Final = 0.0001
COLLECT_BYTES: Final = 16 * 1024 * 1024
"""How many bytes of a gang's leftover segments one call copies, so that other jobs are checked between the calls."""
COLLECT_TIMEOUT_S: Final = 3600.0
"""How long an ended gang is kept because this machine's disk refuses its leftover segments."""


@final
class _OwnFoldersOnly(JobConfig):
    """Prevents Ray from putting this process's working folder first on the import path of the cluster's processes."""

    @override
    def _runtime_env_has_working_dir(self) -> bool:
        return True  # if True, Ray does not pass on the folder


@final
class Driver:
    """The calls of a service to Ray. Arguments and results are JSON values. Any thread may call any method.

    If Ray does not answer, its own errors are raised.

    Args:
        num_ready: the number of worker processes that Ray keeps ready on the head's node.
    """

    def __init__(self, *, num_ready: int = 0) -> None:
        self._reserve = WorkerReserve(num_ready, clock=time.monotonic)
        self._refused_since_s: dict[str, float] = {}
        self._shells: dict[str, Any] = {}

    def connect(self, *, address: str) -> dict[str, float]:
        """Connects to Ray, once in the life of this process. Returns the total resources of the cluster."""
        ray.init(
            address=address,
            namespace=NAMESPACE,
            log_to_driver=False,
            configure_logging=False,
            job_config=_OwnFoldersOnly(),
        )
        return dict(ray.cluster_resources())

    def maintain(self) -> None:
        """Does periodic work. Does not wait for Ray, so an answer shows only that this process is alive."""
        self._reserve.refill()

    def fence(self, *, generation: int, owner: str) -> None:
        """See `AbstractCluster.fence`."""
        raise_fence(generation, owner=owner)

    def place(self, *, order: str, label: str | None, is_shared: bool) -> None:
        """Requests a gang; see `AbstractCluster.place`.

        Args:
            order: the `GangOrder` as JSON.
            label: the node label whose values are the ``machine`` of orders; None if there is only one node.
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
                # On the head's node: if another node is lost or released, no supervisor is lost with it.
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

    def collect_leftovers(self, *, order: str) -> bool:
        """See `AbstractCluster.collect_leftovers`.

        Args:
            order: the gang's `GangOrder` as JSON.
        """
        gang = GANG_ORDER.validate_json(order)
        supervisor = self._find(gang.gang_id)
        num_bytes_left = COLLECT_BYTES
        for replica in () if supervisor is None else gang.replicas:
            try:
                num_bytes = copy_leftovers(RemoteLeftovers(supervisor), order=replica, at_most_bytes=num_bytes_left)
            except (RayActorError, RayTaskError, CorruptDataError) as error:  # the actor or its disk failed
                # The other replicas' segments are still copied.
                LOGGER.error(
                    "cannot copy the leftover segments of %s of gang %s: %s", replica.name, gang.gang_id, error
                )
                continue
            except RayError:
                raise
            except OSError as error:
                return self._has_timed_out(gang.gang_id, error=error)
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
        """Returns the living nodes' ids, resources and labels, in Ray's form.

        If this process's own node is not among them, the process is connected to a cluster that no longer exists. The
        process then ends, and the service starts another one, which connects again.
        """
        found: list[dict[str, Any]] = ray.nodes()
        alive = [node for node in found if node["Alive"]]
        own = ray.get_runtime_context().get_node_id()
        if own not in [node["NodeID"] for node in alive]:
            LOGGER.error("this driver's Ray node %s is lost; the driver exits", own)
            os._exit(1)
        return [{name: node.get(name, {}) for name in ("NodeID", "Resources", "Labels")} for node in alive]

    def free(self) -> dict[str, dict[str, float]]:
        """Returns the free resources of each node by node id, with Ray's names of resources."""
        return available_resources_per_node()

    def request_profile(self, *, gang_id: str, replica: str, request: str) -> bool:
        """Passes a `ProfileRequest`, given as JSON, to a replica's runner. Returns whether the runner runs."""
        launcher = self._launcher(gang_id, replica)
        with contextlib.suppress(RayActorError):
            if launcher is not None:
                return bool(ray.get(launcher.request_profile.remote(request), timeout=CALL_TIMEOUT_S))
        return False

    def open_shell(self, *, gang_id: str, replica: str) -> str | None:
        """Opens a shell and returns its id; None if the replica accepts no shells now."""
        try:
            launcher = self._launcher(gang_id, replica)
            shell_id: Any = launcher and ray.get(launcher.open_shell.remote(), timeout=CALL_TIMEOUT_S)
        except RayActorError:
            return None
        if shell_id:
            self._shells[shell_id] = launcher
        return shell_id or None

    def send_to_shell(self, *, shell_id: str, data: str) -> bool:
        """Sends bytes, given in base64, to a shell. Returns whether the shell accepted them."""
        launcher = self._shells.get(shell_id)
        with contextlib.suppress(RayActorError):
            if launcher is not None:
                return ray.get(launcher.send_to_shell.remote(shell_id, b64decode(data)), timeout=SEND_TIMEOUT_S)
        return False

    def receive_from_shell(self, *, shell_id: str, timeout_s: float) -> str | None:
        """Returns the next bytes from a shell, in base64; see `AbstractShell.receive`."""
        launcher = self._shells.get(shell_id)
        with contextlib.suppress(RayActorError):  # the replica has ended, and its launcher too
            if launcher is not None:
                asked = launcher.receive_from_shell.remote(shell_id, timeout_s)
                data: Any = ray.get(asked, timeout=timeout_s + CALL_TIMEOUT_S)
                return None if data is None else b64encode(data).decode()
        return None

    def close_shell(self, *, shell_id: str) -> None:
        """Closes a shell. Idempotent."""
        launcher = self._shells.pop(shell_id, None)
        if launcher is not None:
            launcher.close_shell.remote(shell_id)

    def _has_timed_out(self, gang_id: str, *, error: OSError) -> bool:
        """Notes that this machine's disk refuses a gang's segments.

        Returns whether `COLLECT_TIMEOUT_S` has passed since the first refusal.
        """
        now_s = time.monotonic()
        if gang_id not in self._refused_since_s:
            self._refused_since_s[gang_id] = now_s
            LOGGER.warning("the leftover segments of gang %s cannot be stored on this disk yet: %s", gang_id, error)
        if now_s - self._refused_since_s[gang_id] < COLLECT_TIMEOUT_S:
            return False
        LOGGER.error("giving up the leftover segments of gang %s: this disk cannot store them: %s", gang_id, error)
        return True

    def _launcher(self, gang_id: str, replica: str) -> Any | None:
        """Returns the launcher of a replica; None if there is no such gang or replica, or if it has not been placed."""
        supervisor = self._find(gang_id)
        if supervisor is None:
            return None
        with contextlib.suppress(RayActorError):
            return ray.get(supervisor.launcher.remote(replica), timeout=CALL_TIMEOUT_S)
        return None

    @staticmethod
    def _find(gang_id: str) -> Any | None:
        with contextlib.suppress(ValueError):  # Ray raises it if there is no such actor
            return ray.get_actor(gang_id, namespace=NAMESPACE)
        return None


def answer(driver: Driver, connection: socket.socket) -> None:
    """Reads one call from a connection up to its end, executes it, and writes its result or error.

    Args:
        driver: the object whose method is called.
        connection: the connection of this call; closed when this function returns.
    """
    with connection:
        call: dict[str, Any] = json.loads(b"".join(iter(lambda: connection.recv(READ_BYTES), b"")))
        try:
            reply = {"result": getattr(driver, call["name"])(**call["arguments"])}
        except Exception as error:  # any kind: it is reported to the caller
            if not isinstance(error, (RayError, OSError)):  # a bug here, or an unknown version of Ray
                LOGGER.exception("%s failed", call["name"])
            reply = {"error": f"{type(error).__name__}: {error}"}
        with contextlib.suppress(OSError):  # the caller no longer waits
            connection.sendall(json.dumps(reply).encode())


def serve(control: socket.socket, driver: Driver) -> None:
    """Answers calls until the service closes its end of the control socket, by ending or by replacing this process.

    Args:
        control: the socket that receives a connection for each call.
        driver: the object whose methods are called.
    """
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not data:
            return
        for descriptor in descriptors:
            # One thread for each call, so that a call that waits for Ray does not delay the others.
            arguments = (driver, socket.socket(fileno=descriptor))
            threading.Thread(target=answer, args=arguments, daemon=True).start()


def main(arguments: list[str]) -> None:
    """Runs the process to its end.

    Args:
        arguments: the file descriptor of the control socket, and the number of worker processes to keep ready.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # On each connection, it would warn that a thread handles no signals.
    logging.getLogger("ray._private.worker").setLevel(logging.ERROR)
    descriptor, num_ready = (int(argument) for argument in arguments)
    os.set_inheritable(descriptor, False)
    serve(socket.socket(fileno=descriptor), Driver(num_ready=num_ready))
    os._exit(0)  # skips Ray's own shutdown, which would wait for its node


if __name__ == "__main__":
    main(sys.argv[1:])
