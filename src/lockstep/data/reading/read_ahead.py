"""Makes batches before they are requested: several in parallel, returned in order."""

from __future__ import annotations

import weakref
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, final

from lockstep.data.reading.plan import MadeBatch, Plan
from lockstep.data.reading.workers import Workers


@final
class ReadAhead:
    """Makes the batches of one epoch ahead of their use. May be used by one thread only.

    At most ``num_ahead`` batches beyond the requested one are finished or being made, which bounds the memory.

    Args:
        plan: the definition of the batches.
        epoch: the epoch, from 0.
        num_ahead: the number of batches to make ahead; 0 makes each batch when it is requested, in the requesting
            thread.
        num_threads: the number of threads that make batches if ``workers`` is None.
        workers: the processes that make the batches instead of threads.
    """

    def __init__(
        self, plan: Plan, *, epoch: int, num_ahead: int, num_threads: int, workers: Workers | None = None
    ) -> None:
        self._plan = plan
        self._epoch = epoch
        self._num_ahead = num_ahead
        self._num_threads = num_threads
        self._workers = workers
        self._making = _Making(workers)
        # An abandoned iterator is stopped at the program's exit by a finalizer, while modules are still intact, rather
        # than by `__del__` later.
        weakref.finalize(self, self._making.stop)

    def take(self, batch: int) -> MadeBatch:
        """Returns a batch, which has to be the one after the last returned batch, or the same one after an error."""
        if not self._num_ahead:
            return self._plan.make(self._epoch, batch)
        last = min(batch + 1 + self._num_ahead, self._plan.num_batches)
        for following in range(batch + len(self._making.ahead), last):
            self._making.ahead.append(self._submit(following))
        try:
            found = self._making.ahead[0]
            made = found.result() if self._workers is None else self._workers.take(found)
        except BaseException:
            self.stop()
            raise
        self._making.ahead.popleft()
        return made

    def stop(self) -> None:
        """Stops making batches, and drops those that were made ahead."""
        self._making.stop()

    def _submit(self, batch: int) -> Future[Any]:
        if self._workers is not None:
            return self._workers.submit(self._epoch, batch)
        # The threads refer to the plan, not to this object, so they end when this object is dropped.
        return self._making.executor(self._num_threads).submit(self._plan.make, self._epoch, batch)


@final
class _Making:
    """The threads that make batches ahead, and the batches that were made or are being made.

    Args:
        workers: the processes that make the batches; None for threads.
    """

    def __init__(self, workers: Workers | None) -> None:
        self.ahead: deque[Future[Any]] = deque()
        self._workers = workers
        self._executors: list[ThreadPoolExecutor] = []  # at most one

    def executor(self, num_threads: int) -> ThreadPoolExecutor:
        """Returns the thread pool, and creates it on first use."""
        if not self._executors:
            self._executors.append(ThreadPoolExecutor(num_threads, "lockstep-read-ahead"))
        return self._executors[0]

    def stop(self) -> None:
        """Stops making batches, and drops those that were made. Idempotent."""
        while self._executors:
            self._executors.pop().shutdown(wait=False, cancel_futures=True)
        while self.ahead:
            future = self.ahead.popleft()
            future.cancel()
            if self._workers is not None:
                self._workers.drop(future)
