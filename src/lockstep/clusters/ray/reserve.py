"""Keeps worker processes of Ray ready on the head's node, so that a gang's actors need not wait for one to start.

A worker process takes most of a second to start and to import its modules. Ray starts some in advance when the first
driver connects, but does not replace them when they are used. So this module requests replacements, with a call that is
not part of Ray's public API. If the call fails, gangs start as they would without the reserve.
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
"""How long after a gang was placed the reserve is refilled, so that it does not slow down the gang's own start."""
KEEP_S: Final = 10 * 365 * 24 * 3600
"""How long Ray keeps the processes: practically forever, so that an engine that was idle for days has them ready."""
CALL_TIMEOUT_S: Final = 2.0
THREAD_NAME: Final = "worker reserve"


@final
class WorkerReserve:
    """Counts the worker processes that gangs take from the reserve, and refills it.

    Args:
        size: the number of processes to keep ready.
        clock: returns a monotonic time in seconds.
        start_workers: requests this many processes from Ray. It is called in its own thread, because it may hang.
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
        """Records that a gang has taken processes."""
        self._num_taken = min(self._size, self._num_taken + num_workers)
        self._due_s = self._clock() + REFILL_AFTER_S

    def refill(self) -> None:
        """Requests replacements for taken processes if none were taken for `REFILL_AFTER_S`. Does not block.

        Does nothing while Ray has not answered the last request, however long that takes.
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
        except Exception as error:  # any kind: gangs start without the reserve
            LOGGER.debug("no worker processes are started ahead: %r", error)


def start_on_head(num_workers: int) -> None:
    """Requests that Ray start worker processes on the head's node for this process's actors. Does not wait for them.

    Hangs as long as Ray's control store hangs.

    Raises:
        Exception: Ray has no such call, or the call failed.
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
