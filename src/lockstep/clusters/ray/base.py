"""The base of all engines on Ray: a head, and the driver that communicates with it.

This process never imports Ray. Ray is imported in the driver, a separate process
(`lockstep.clusters.ray.driver_process`).
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, Final

from typing_extensions import override

from lockstep.clusters.base import AbstractCluster, not_running
from lockstep.clusters.ray.driver_process import (
    CALL_TIMEOUT_S,
    DRIVER_VARIABLE,
    MARGIN_S,
    DriverProcess,
)
from lockstep.clusters.ray.head import AbstractHead, HeadRecord
from lockstep.clusters.ray.processes import end_processes
from lockstep.clusters.ray.ray_shell import RayShell
from lockstep.clusters.shell_relay import AbstractShell
from lockstep.errors import EngineError, UnavailableError
from lockstep.heartbeat import ProfileRequest
from lockstep.home import Home
from lockstep.jobs.running.orders import GANG_ORDER, GANG_STATUS, GangOrder, GangStatus
from lockstep.processes import find_marked

LOGGER: Final = logging.getLogger(__name__)

CONNECT_TIMEOUT_S: Final = 60.0
COLLECT_CALL_TIMEOUT_S: Final = 120.0
"""The timeout of one call of `collect_leftovers`."""


def ray_accelerator_name(accelerator_type: str) -> str:
    """Returns Ray's name of a contract's GPU: ``NVIDIA_TESLA_V100`` is ``V100``, ``NVIDIA_H100_80GB`` is ``H100``."""
    return accelerator_type.removeprefix("NVIDIA_").removeprefix("TESLA_").split("_")[0]


def ray_version() -> str:
    """Returns the installed version of Ray."""
    return version("ray")


class AbstractRayCluster(AbstractCluster):
    """An engine on Ray.

    Args:
        head: the Ray head of this engine.
        home: the home that uses the engine.
        what: the engine's name in error messages.
        environment: the environment variables that Ray reads when it is imported, including the path of its token.
        label: the node label whose values are the ``machine`` of orders; None if there is only one node.
        num_ready: the number of worker processes that Ray keeps ready on the head's node.
        is_shared: whether others use the nodes too. If so, a replica reserves its resources in Ray itself.
    """

    def __init__(
        self,
        head: AbstractHead,
        *,
        home: Home,
        what: str,
        environment: Mapping[str, str],
        label: str | None = None,
        num_ready: int = 0,
        is_shared: bool = False,
    ) -> None:
        self._head = head
        self._mark = os.path.realpath(home.engine)
        self._what = what
        self._environment = environment
        self._label = label
        self._num_ready = num_ready
        self._is_shared = is_shared
        self._record: HeadRecord | None = None
        self._driver: DriverProcess | None = None
        self._resources: dict[str, float] = {}
        self._fenced: tuple[HeadRecord | None, int, str] | None = None
        self._lock = threading.Lock()

    @override
    def start(self) -> None:
        with self._lock:
            if self._driver is not None and self._driver.is_alive and self._head.find() == self._record:
                self._ask("maintain")
                return
            self._log_lost_connection()
            self._disconnect()
            driver = self._make_driver()  # the driver imports Ray while the head starts
            try:
                record = self._head.start()
                self._resources = driver.call(
                    "connect",
                    within_s=CONNECT_TIMEOUT_S,
                    is_there=lambda: self._head.find() == record,
                    address=record.address,
                )
            except BaseException:
                driver.end()
                raise
            self._record, self._driver = record, driver
            LOGGER.info("connected to %s at %s", self._what, record.address)

    @override
    def fence(self, generation: int, *, owner: str) -> None:
        fenced = (self._record, generation, owner)
        if self._fenced != fenced:
            self._ask("fence", generation=generation, owner=owner)
            self._fenced = fenced

    @override
    def place(self, order: GangOrder) -> None:
        text = GANG_ORDER.dump_json(order).decode()
        self._ask("place", order=text, label=self._label, is_shared=self._is_shared)

    @override
    def observe(self, gang_id: str) -> GangStatus | None:
        status = self._ask("observe", gang_id=gang_id)
        return None if status is None else GANG_STATUS.validate_json(status)

    @override
    def move(self, gang_id: str, *, replica: str, machine: str) -> None:
        self._ask("move", gang_id=gang_id, replica=replica, machine=machine)

    @override
    def stop(self, gang_id: str) -> None:
        self._ask("stop", gang_id=gang_id)

    @override
    def collect_leftovers(self, order: GangOrder) -> bool:
        return self._ask(
            "collect_leftovers", within_s=COLLECT_CALL_TIMEOUT_S, order=GANG_ORDER.dump_json(order).decode()
        )

    @override
    def forget(self, gang_id: str) -> None:
        self._ask("forget", gang_id=gang_id)

    @override
    def request_profile(self, gang_id: str, *, replica: str, request: ProfileRequest) -> None:
        text = request.to_bytes().decode()
        within_s = 2 * CALL_TIMEOUT_S
        if not self._ask("request_profile", within_s=within_s, gang_id=gang_id, replica=replica, request=text):
            raise not_running(replica)

    @override
    def open_shell(self, gang_id: str, *, replica: str) -> AbstractShell:
        shell_id = self._ask("open_shell", within_s=2 * CALL_TIMEOUT_S, gang_id=gang_id, replica=replica)
        if shell_id is None:
            raise UnavailableError(
                f"replica {replica} accepts no shells now", action="wait until its program is running"
            )
        return RayShell(shell_id, ask=self._ask)

    @override
    def close(self) -> None:
        with self._lock:
            self._disconnect()

    @override
    def shut_down(self) -> None:
        self.close()
        # Drivers of a service that was killed end by themselves, unless they hang.
        end_processes(lambda: find_marked(DRIVER_VARIABLE, accept=lambda mark: mark == self._mark), what="the driver")
        self._head.stop()

    def _make_driver(self) -> DriverProcess:
        return DriverProcess(what=self._what, mark=self._mark, environment=self._environment, num_ready=self._num_ready)

    def _log_lost_connection(self) -> None:
        """Logs why the connection is replaced: if the new connection works, nothing else reports the loss."""
        if self._driver is not None:
            is_there = self._head.find() == self._record
            why = f"its driver {self._driver.describe_exit()}" if is_there else "its head is gone"
            LOGGER.warning("the connection to %s is lost: %s", self._what, why)

    def _disconnect(self) -> None:
        if self._driver is not None:
            self._driver.end()
        self._record = self._driver = None
        self._fenced = None  # a restarted attached Ray has the same address, but no fence

    def _ask(self, name: str, *, within_s: float = CALL_TIMEOUT_S, **arguments: Any) -> Any:
        """Calls a method of the driver; see `DriverProcess.call`.

        Args:
            name: the name of the method.
            within_s: how long Ray may take, in seconds.
            arguments: the arguments of the method.
        """
        driver, record = self._driver, self._record

        def is_there() -> bool:
            return record is not None and self._head.find() == record

        if driver is None or not is_there():
            raise EngineError(f"{self._what} is not running")
        return driver.call(name, within_s=within_s + MARGIN_S, is_there=is_there, **arguments)
