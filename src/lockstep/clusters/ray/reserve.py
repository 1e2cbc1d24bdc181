"""Worker processes that Ray keeps ready on the head's node: a gang's actors then need not wait for one to start.

A process of Ray takes most of a second to start and to import what it needs. Ray starts some ahead when the first
driver comes, and none for those that are taken later, so this asks for them, by a call of Ray's own that its public
interface does not have: where it fails, gangs start as they would without it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Final, cast, final

import ray

from lockstep.clusters.ray.head import HEAD_RESOURCE

LOGGER: Final = logging.getLogger(__name__)

REFILL_AFTER_S: Final = 2.0
"""So long after a gang was placed: its own start comes first."""
KEEP_S: Final = 10 * 365 * 24 * 3600
"""An engine that is idle for days has them ready still."""
CALL_TIMEOUT_S: Final = 2.0
THREAD_NAME: Final = "worker reserve"


@final
class WorkerReserve:
    """Counts what gangs take of the reserve, and has it filled up again.

    Args:
        size: how many processes are to be ready.
        clock: seconds of a steady clock.
        start_workers: has Ray start so many processes; called in a thread of its own, since it may hang with Ray.
    """

    def __init__(
        self, size: int, *, clock: Callable[[], float], start_workers: Callable[[int], None] | None = None
    ) -> None:
        self._size = size
        self._clock = clock
        self._start_workers = start_workers or start_on_head
        self._num_taken = 0
        self._due_s = 0.0
        self._asking: threading.Thread | None = None

    def take(self, num_workers: int) -> None:
        """Notes that a gang took some."""
        self._num_taken = min(self._size, self._num_taken + num_workers)
        self._due_s = self._clock() + REFILL_AFTER_S

    def refill(self) -> None:
        """Has those that were taken replaced, once nothing was taken for a while. Does not block.

        While Ray has not answered to the last time, for however long, it is not asked again.
        """
        is_asking = self._asking is not None and self._asking.is_alive()
        if is_asking or not self._num_taken or self._clock() < self._due_s:
            return
        num_taken, self._num_taken = self._num_taken, 0
        self._asking = threading.Thread(target=self._ask, args=(num_taken,), name=THREAD_NAME, daemon=True)
        self._asking.start()

    def _ask(self, num_workers: int) -> None:
        try:
            self._start_workers(num_workers)
        except Exception as error:  # of whatever kind: gangs start without it
            LOGGER.debug("no worker processes are started ahead: %r", error)


def start_on_head(num_workers: int) -> None:
    """Has Ray start worker processes on the head's node, for this process's actors. Does not wait for them.

    Hangs for as long as Ray's control store does.

    Raises:
        Exception: Ray has no such call, or it failed.
    """
    from ray._private.grpc_utils import init_grpc_channel
    from ray.core.generated import node_manager_pb2, node_manager_pb2_grpc

    messages, calls = cast("Any", node_manager_pb2), cast("Any", node_manager_pb2_grpc)
    head = next(node for node in ray.nodes() if HEAD_RESOURCE in node["Resources"])
    request = messages.PrestartWorkersRequest(
        num_workers=num_workers,
        job_id=bytes.fromhex(ray.get_runtime_context().get_job_id()),
        keep_alive_duration_secs=KEEP_S,
    )
    with cast("Any", init_grpc_channel(f"{head['NodeManagerAddress']}:{head['NodeManagerPort']}")) as channel:
        calls.NodeManagerServiceStub(channel).PrestartWorkers(request, timeout=CALL_TIMEOUT_S)
