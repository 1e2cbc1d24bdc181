"""Batches that are made before they are asked for: several at a time, handed out in their order."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, final

from lockstep.data.reading.plan import Made, Plan
from lockstep.data.reading.workers import Workers


@final
class ReadAhead:
    """Makes the batches of one epoch, from a place on; for one thread.

    At most ``num_ahead`` batches are made or being made beyond the one that is asked for: memory is bounded by that.

    Args:
        plan: what the batches are.
        epoch: which epoch.
        num_ahead: 0 makes each batch when it is asked for, in the asking thread.
        num_threads: how many make batches, where no processes do.
        workers: processes that make them instead.
    """

    def __init__(
        self, plan: Plan, *, epoch: int, num_ahead: int, num_threads: int, workers: Workers | None = None
    ) -> None:
        self._plan = plan
        self._epoch = epoch
        self._num_ahead = num_ahead
        self._num_threads = num_threads
        self._workers = workers
        self._executor: ThreadPoolExecutor | None = None
        self._ahead: deque[Future[Any]] = deque()

    def take(self, batch: int) -> Made:
        """Returns a batch; each call asks for the one after the last. After an error the same batch is next."""
        if not self._num_ahead:
            return self._plan.make(self._epoch, batch)
        last = min(batch + 1 + self._num_ahead, self._plan.num_batches)
        for following in range(batch + len(self._ahead), last):
            self._ahead.append(self._submit(following))
        try:
            found = self._ahead[0]
            made = found.result() if self._workers is None else self._workers.take(found)
        except BaseException:
            self.stop()
            raise
        self._ahead.popleft()
        return made

    def stop(self) -> None:
        """Makes no more; what was made ahead is dropped."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
        self._executor = None
        for future in self._ahead:
            future.cancel()
            if self._workers is not None:
                self._workers.drop(future)
        self._ahead.clear()

    def _submit(self, batch: int) -> Future[Any]:
        if self._workers is not None:
            return self._workers.submit(self._epoch, batch)
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._num_threads, "lockstep-read-ahead")
        # The threads know the plan, not this object: dropping it ends them.
        return self._executor.submit(self._plan.make, self._epoch, batch)
