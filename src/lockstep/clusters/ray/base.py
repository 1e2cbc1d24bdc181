"""What all engines on Ray share: gangs as detached actors, found by their ids.

Ray reads its variables when it is imported, so the engine's token must be in the environment before this module is:
`lockstep.clusters.ray.opening` sees to it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast, final

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.job_config import JobConfig
from typing_extensions import override

from lockstep.clusters.base import AbstractCluster
from lockstep.clusters.ray.actors import GangSupervisor
from lockstep.clusters.ray.fence import raise_fence
from lockstep.clusters.ray.head import HEAD_RESOURCE, AbstractHead, HeadRecord
from lockstep.clusters.ray.left import LeftThere, bring_left
from lockstep.clusters.ray.reserve import WorkerReserve
from lockstep.clusters.ray.shells import CALL_TIMEOUT_S, RayShell
from lockstep.clusters.shells import AbstractShell
from lockstep.errors import CorruptDataError, EngineError, UnavailableError
from lockstep.jobs.orders import GANG_ORDER, GANG_STATUS, GangOrder, GangStatus

LOGGER: Final = logging.getLogger(__name__)

NAMESPACE: Final = "lockstep"
HEAD_SHARE: Final = 0.0001
BRING_BYTES: Final = 16 * 1024 * 1024
"""How much of what a gang has left is brought at once: the other jobs are looked at in between."""
BRING_S: Final = 3600.0
"""How long a gang that is over is kept for what it has left, where this machine's disk refuses it."""

Result = TypeVar("Result")


def ray_accelerator_name(accelerator_type: str) -> str:
    """Returns Ray's name of a contract's GPU: ``NVIDIA_TESLA_V100`` is ``V100``, ``NVIDIA_H100_80GB`` is ``H100``."""
    return accelerator_type.removeprefix("NVIDIA_").removeprefix("TESLA_").split("_")[0]


@final
class _OwnFoldersOnly(JobConfig):
    """Keeps Ray from having the cluster's processes import from this process's working folder, before all else."""

    @override
    def _runtime_env_has_working_dir(self) -> bool:
        return True  # which is what Ray asks before it hands that folder on


class AbstractRayCluster(AbstractCluster):
    """An engine on Ray.

    Args:
        head: the Ray head of this engine.
        what: what to call the engine in errors.
        label: the node label whose values are the machines of orders; None where there is but one node.
        num_ready: how many worker processes Ray is to keep ready on the head's node.
        is_shared: whether others use its nodes too: what a replica has of one is then kept for it in Ray itself.
    """

    def __init__(
        self, head: AbstractHead, *, what: str, label: str | None = None, num_ready: int = 0, is_shared: bool = False
    ) -> None:
        self._head = head
        self._what = what
        self._label = label
        self._is_shared = is_shared
        self._record: HeadRecord | None = None
        self._resources: dict[str, float] = {}
        self._fenced: tuple[HeadRecord | None, int, str] | None = None
        self._reserve = WorkerReserve(num_ready, clock=time.monotonic)
        self._refused_since_s: dict[str, float] = {}
        self._lock = threading.Lock()

    @override
    def start(self) -> None:
        with self._lock:
            record = self._head.start()
            if self._record == record and ray.is_initialized():
                self._reserve.refill()
                return
            ray.shutdown()
            try:
                ray.init(
                    address=record.address,
                    namespace=NAMESPACE,
                    log_to_driver=False,
                    configure_logging=False,
                    job_config=_OwnFoldersOnly(),
                )
                self._resources = dict(ray.cluster_resources())
            except Exception as error:  # Ray raises many kinds here, builtin ones among them
                raise EngineError(f"cannot connect to {self._what} at {record.address}: {error}") from error
            self._record = record

    @override
    def fence(self, generation: int, *, owner: str) -> None:
        fenced = (self._record, generation, owner)
        if self._fenced != fenced:
            self._call(lambda: raise_fence(generation, owner=owner))
            self._fenced = fenced

    @override
    def place(self, order: GangOrder) -> None:
        text = GANG_ORDER.dump_json(order).decode()

        def create() -> None:
            supervisor = (
                ray.remote(GangSupervisor)
                .options(
                    name=order.gang_id,
                    namespace=NAMESPACE,
                    lifetime="detached",
                    get_if_exists=True,
                    num_cpus=0,
                    # Beside the head: a node that is lost, or given back, takes no other gang's supervisor with it.
                    resources={HEAD_RESOURCE: HEAD_SHARE},
                    max_restarts=0,
                    max_concurrency=8,
                )
                .remote(text, label=self._label, is_shared=self._is_shared)
            )
            ray.get(cast("Any", supervisor).status.remote(), timeout=CALL_TIMEOUT_S)

        self._call(create)
        self._reserve.take(1 + len(order.replicas))

    @override
    def observe(self, gang_id: str) -> GangStatus | None:
        def ask() -> GangStatus | None:
            supervisor = self._find(gang_id)
            if supervisor is None:
                return None
            try:
                return GANG_STATUS.validate_json(ray.get(supervisor.status.remote(), timeout=CALL_TIMEOUT_S))
            except RayActorError:
                return None

        return self._call(ask)

    @override
    def move(self, gang_id: str, *, replica: str, machine: str) -> None:
        def ask() -> None:
            supervisor = self._find(gang_id)
            if supervisor is not None:
                supervisor.move.remote(replica, machine)

        self._call(ask)

    @override
    def stop(self, gang_id: str) -> None:
        def ask() -> None:
            supervisor = self._find(gang_id)
            if supervisor is not None:
                supervisor.stop.remote()

        self._call(ask)

    @override
    def bring_left(self, order: GangOrder) -> bool:
        def bring() -> bool:
            supervisor = self._find(order.gang_id)
            num_bytes_left = BRING_BYTES
            for replica in () if supervisor is None else order.replicas:
                try:
                    num_bytes = bring_left(LeftThere(supervisor), order=replica, at_most_bytes=num_bytes_left)
                except (RayActorError, RayTaskError, CorruptDataError) as error:  # it is gone, or cannot read its disk
                    # Of this replica: what the others have left does not stay there with it.
                    LOGGER.error(
                        "what %s of gang %s has left cannot be brought: %s", replica.name, order.gang_id, error
                    )
                    continue
                except RayError:
                    raise
                except OSError as error:
                    return self._gives_up(order.gang_id, error=error)
                num_bytes_left -= num_bytes
                if num_bytes:
                    self._refused_since_s.pop(order.gang_id, None)
                if num_bytes_left <= 0:
                    return False
            return True

        return self._call(bring)

    @override
    def forget(self, gang_id: str) -> None:
        def kill() -> None:
            supervisor = self._find(gang_id)
            if supervisor is not None:
                ray.kill(supervisor)

        self._call(kill)
        self._refused_since_s.pop(gang_id, None)

    @override
    def open_shell(self, gang_id: str, *, replica: str) -> AbstractShell:
        def ask() -> AbstractShell | None:
            supervisor = self._find(gang_id)
            if supervisor is None:
                return None
            try:
                launcher: Any = ray.get(supervisor.launcher.remote(replica), timeout=CALL_TIMEOUT_S)
                if launcher is None:
                    return None
                shell_id: Any = ray.get(launcher.open_shell.remote(), timeout=CALL_TIMEOUT_S)
            except RayActorError:
                return None
            return RayShell(launcher, shell_id=shell_id, call=self._call) if shell_id else None

        shell = self._call(ask)
        if shell is None:
            raise UnavailableError(f"replica {replica} takes no shells now", action="its program has to run")
        return shell

    @override
    def close(self) -> None:
        with self._lock:
            self._record = None
            ray.shutdown()

    @override
    def shut_down(self) -> None:
        self.close()
        self._head.stop()

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

    def _call(self, action: Callable[[], Result]) -> Result:
        if self._record is None or self._head.find() != self._record:
            raise EngineError(f"{self._what} is not running")
        try:
            return action()
        except RayError as error:
            raise EngineError(f"{self._what} does not answer: {type(error).__name__}: {error}") from error
