"""Batches that are made before they are asked for: several at a time, handed out in their order."""

from __future__ import annotations

import weakref
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
        self._making = _Making(workers)
        # Who leaves an iterator behind ends it with the program: while modules are still whole, not by `__del__` later.
        weakref.finalize(self, self._making.stop)

    def take(self, batch: int) -> Made:
        """Returns a batch; each call asks for the one after the last. After an error the same batch is next."""
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
        """Makes no more; what was made ahead is dropped."""
        self._making.stop()

    def _submit(self, batch: int) -> Future[Any]:
        if self._workers is not None:
            return self._workers.submit(self._epoch, batch)
        # The threads know the plan, not this object: dropping it ends them.
        return self._making.executor(self._num_threads).submit(self._plan.make, self._epoch, batch)


@final
class _Making:
    """What makes batches ahead, and those that it makes.

    Args:
        workers: processes that make them; None for threads.
    """

    def __init__(self, workers: Workers | None) -> None:
        self.ahead: deque[Future[Any]] = deque()
        self._workers = workers
        self._executors: list[ThreadPoolExecutor] = []  # one at most

    def executor(self, num_threads: int) -> ThreadPoolExecutor:
        """Returns the threads, which it starts where there are none."""
        if not self._executors:
            self._executors.append(ThreadPoolExecutor(num_threads, "lockstep-read-ahead"))
        return self._executors[0]

    def stop(self) -> None:
        """Makes no more, and drops what was made. Idempotent."""
        while self._executors:
            self._executors.pop().shutdown(wait=False, cancel_futures=True)
        while self.ahead:
            future = self.ahead.popleft()
            future.cancel()
            if self._workers is not None:
                self._workers.drop(future)
