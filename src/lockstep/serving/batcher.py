"""Dynamic batching: requests that arrive while the model runs share its next run.

The batcher runs on one event loop. The model runs in a separate thread, so that requests are read and answered while it
computes. Only a model whose runs take a fraction of a millisecond runs on the event loop itself.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Self, final

import numpy as np

from lockstep.errors import OverloadedError
from lockstep.serving.batch_counts import BatchCounts
from lockstep.serving.batch_policy import BatchPolicy
from lockstep.serving.instances import Arrays

SHORT_RUN_S: Final = 0.0003
"""Runs that take less time are made on the event loop, in seconds: passing them to a thread and back takes as long."""
NUM_TIMES: Final = 8
"""How many runs of a size have to be short for the next one to be made on the event loop."""

Predict = Callable[[Mapping[str, np.ndarray]], Arrays]


@final
@dataclass(kw_only=True, eq=False)
class _Request:
    arrays: Mapping[str, np.ndarray]
    num_rows: int
    shapes: tuple[tuple[int, ...], ...]
    answer: asyncio.Future[Arrays] = field(repr=False)
    num_taken: int = 0
    num_answered: int = 0
    parts: list[Arrays] = field(default_factory=list[Arrays])

    def take(self, num_rows: int) -> Mapping[str, np.ndarray]:
        """Returns the arrays of the request's next rows."""
        start, self.num_taken = self.num_taken, self.num_taken + num_rows
        if num_rows == self.num_rows:
            return self.arrays
        return {name: array[start : self.num_taken] for name, array in self.arrays.items()}

    def add(self, outputs: Arrays) -> None:
        """Adds the model's outputs for the next rows, in the order in which the rows were taken."""
        if self.answer.done():
            return
        self.parts.append(outputs)
        self.num_answered += len(next(iter(outputs.values())))
        if self.num_answered == self.num_rows:
            single = len(self.parts) == 1
            self.answer.set_result(
                outputs if single else {name: np.concatenate([part[name] for part in self.parts]) for name in outputs}
            )


@final
class _RunTimes:
    """The times of the model's recent runs, by the number of rows that they are padded to."""

    def __init__(self) -> None:
        self._times: dict[int, deque[float]] = {}

    def add(self, num_rows: int, run_s: float) -> None:
        """Adds the time of a run, in seconds."""
        self._times.setdefault(num_rows.bit_length(), deque(maxlen=NUM_TIMES)).append(run_s)

    def are_short(self, num_rows: int) -> bool:
        """Returns whether all recent runs of this size took less time than passing the work to a thread and back."""
        times = self._times.get(num_rows.bit_length(), ())
        return len(times) == NUM_TIMES and max(times) < SHORT_RUN_S


@final
class Batcher:
    """Batches requests and runs the model on them. Use it as an asynchronous context manager.

    Args:
        predict: runs the model on arrays of shape ``[n, ...]`` by input name; called in a thread of the batcher.
        policy: the policy of batching requests.

    Attributes:
        num_requests: the number of requests so far.
        batches: the counts of the runs of the model so far.
    """

    def __init__(self, predict: Predict, *, policy: BatchPolicy) -> None:
        self._predict = predict
        self._policy = policy
        self._waiting: deque[_Request] = deque()
        self._arrived = asyncio.Event()
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="model")
        self._times = _RunTimes()
        self._loop_task: asyncio.Task[None] | None = None
        self._run_start: float | None = None
        self.num_requests = 0
        self.batches = BatchCounts()

    @property
    def num_waiting(self) -> int:
        """The number of requests that wait for a run."""
        return len(self._waiting)

    @property
    def run_s(self) -> float:
        """How long the current run of the model has taken so far, in seconds; 0 if it does not run."""
        return 0.0 if self._run_start is None else time.monotonic() - self._run_start

    async def __aenter__(self) -> Self:
        self._loop_task = asyncio.create_task(self._serve())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._loop_task is not None
        self._loop_task.cancel()
        with suppress(asyncio.CancelledError):
            await self._loop_task
        for request in self._waiting:
            request.answer.cancel()
        self._executor.shutdown()

    async def submit(self, arrays: Mapping[str, np.ndarray]) -> Arrays:
        """Runs the model on one request's arrays, and waits for the result. A cancelled call does not run the model.

        Args:
            arrays: arrays of shape ``[n, ...]`` by input name.

        Returns:
            Arrays of shape ``[n, ...]`` by output name.

        Raises:
            OverloadedError: too many requests are waiting.
            ModelError: the model could not be run.
        """
        if len(self._waiting) >= self._policy.max_waiting:
            self._waiting = deque(request for request in self._waiting if not request.answer.cancelled())
        if len(self._waiting) >= self._policy.max_waiting:
            raise OverloadedError(
                "the prediction server has too many requests waiting",
                received=f"{len(self._waiting)} waiting",
                allowed=f"{self._policy.max_waiting}",
                action="try again later",
            )
        first = next(iter(arrays.values()))
        request = _Request(
            arrays=arrays,
            num_rows=len(first),
            shapes=tuple(array.shape[1:] for array in arrays.values()),
            answer=asyncio.get_running_loop().create_future(),
        )
        self._waiting.append(request)
        self.num_requests += 1
        self._arrived.set()
        return await request.answer

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            batch = await self._next_batch()
            if not batch:
                continue
            try:
                taken = [request.take(num_rows) for request, num_rows in batch]
                self._run_start = time.monotonic()
                num_rows = sum(num_rows for _, num_rows in batch)
                self.batches.add(num_rows)
                if self._times.are_short(num_rows):
                    await asyncio.sleep(0)  # so that requests are read between many such runs
                    outputs = self._run(taken)
                else:
                    outputs = await loop.run_in_executor(self._executor, self._run, taken)
            except asyncio.CancelledError:
                for request, _ in batch:
                    request.answer.cancel()
                raise
            except Exception as error:
                # Any error is passed to the requests of this batch; the loop continues with the next batch.
                for request, _ in batch:
                    if not request.answer.done():
                        request.answer.set_exception(error)
                continue
            finally:
                self._run_start = None
            start = 0
            for request, num_rows in batch:
                rows = slice(start, start + num_rows)
                start = rows.stop
                request.add({name: array[rows] for name, array in outputs.items()})
                if not request.answer.done():  # it continues after all requests that wait now
                    self._waiting.append(request)

    def _run(self, requests: list[Mapping[str, np.ndarray]]) -> Arrays:
        [arrays] = (
            requests
            if len(requests) == 1
            else [{name: np.concatenate([arrays[name] for arrays in requests]) for name in requests[0]}]
        )
        start = time.perf_counter()
        outputs = self._predict(arrays)
        self._times.add(len(next(iter(arrays.values()))), time.perf_counter() - start)
        return outputs

    async def _next_batch(self) -> list[tuple[_Request, int]]:
        while not self._waiting:
            self._arrived.clear()
            await self._arrived.wait()
        if not self._policy.max_latency_s or self._waiting[0].num_taken:
            return self._take()  # the latter has waited for other requests already
        deadline = asyncio.get_running_loop().time() + self._policy.max_latency_s
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                while sum(request.num_rows - request.num_taken for request in self._waiting) < (
                    self._policy.max_batch_size
                ):
                    self._arrived.clear()
                    await self._arrived.wait()
        return self._take()

    def _take(self) -> list[tuple[_Request, int]]:
        """Takes rows of the first request, and following requests of its shapes that fit. Drops cancelled requests.

        Returns:
            The requests, each with the number of its rows to run now: as many as fit for the first, all rows for
            others.
        """
        batch: list[tuple[_Request, int]] = []
        num_rows = 0
        left: deque[_Request] = deque()
        for request in self._waiting:
            if request.answer.done():
                continue
            num_left = request.num_rows - request.num_taken
            wanted = num_left if batch else min(num_left, self._policy.max_batch_size)
            fits = not batch or (
                request.shapes == batch[0][0].shapes and num_rows + wanted <= self._policy.max_batch_size
            )
            if fits and not left:
                batch.append((request, wanted))
                num_rows += wanted
            else:
                left.append(request)
        self._waiting = left
        return batch
