"""Dynamic batching: requests that come while the model runs share its next run.

The batcher lives on one event loop; the model runs in one thread beside it, so that requests are read and answered
while it computes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self, final

import numpy as np

from lockstep.errors import OverloadedError
from lockstep.serving.instances import Arrays

Predict = Callable[[Mapping[str, np.ndarray]], Arrays]


@final
@dataclass(frozen=True, kw_only=True)
class BatchPolicy:
    """How requests are put together.

    Attributes:
        max_batch_size: most instances that are put together; a longer request runs alone.
        max_latency_s: how long the first request of a batch waits for company, in seconds.
        max_waiting: most requests that wait for a run; more are refused.
    """

    max_batch_size: int = 64
    max_latency_s: float = 0.002
    max_waiting: int = 256


@final
@dataclass(kw_only=True, eq=False)
class _Request:
    arrays: Mapping[str, np.ndarray]
    num_rows: int
    shapes: tuple[tuple[int, ...], ...]
    answer: asyncio.Future[Arrays] = field(repr=False)


@final
class Batcher:
    """Puts requests together and runs the model on them. Use it as an asynchronous context.

    Args:
        predict: runs the model on arrays of shape ``[n, ...]`` by input name; called in one thread of the batcher's.
        policy: how requests are put together.
    """

    def __init__(self, predict: Predict, *, policy: BatchPolicy) -> None:
        self._predict = predict
        self._policy = policy
        self._waiting: deque[_Request] = deque()
        self._arrived = asyncio.Event()
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="model")
        self._loop_task: asyncio.Task[None] | None = None

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
        """Has the model run on one request's arrays, and waits for the result. Cancel it and it is not run.

        Args:
            arrays: arrays of shape ``[n, ...]`` by input name.

        Returns:
            Arrays of shape ``[n, ...]`` by output name.

        Raises:
            OverloadedError: too many requests wait.
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
        self._arrived.set()
        return await request.answer

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            batch = await self._next_batch()
            if not batch:
                continue
            try:
                outputs = await loop.run_in_executor(self._executor, self._run, [request.arrays for request in batch])
            except asyncio.CancelledError:
                for request in batch:
                    request.answer.cancel()
                raise
            except Exception as error:
                # Whatever it is, it belongs to whoever asked; the loop goes on with the next.
                for request in batch:
                    if not request.answer.done():
                        request.answer.set_exception(error)
                continue
            start = 0
            for request in batch:
                rows = slice(start, start + request.num_rows)
                start = rows.stop
                if not request.answer.done():
                    request.answer.set_result({name: array[rows] for name, array in outputs.items()})

    def _run(self, requests: list[Mapping[str, np.ndarray]]) -> Arrays:
        if len(requests) == 1:
            return self._predict(requests[0])
        return self._predict({name: np.concatenate([arrays[name] for arrays in requests]) for name in requests[0]})

    async def _next_batch(self) -> list[_Request]:
        while not self._waiting:
            self._arrived.clear()
            await self._arrived.wait()
        deadline = asyncio.get_running_loop().time() + self._policy.max_latency_s
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                while sum(request.num_rows for request in self._waiting) < self._policy.max_batch_size:
                    self._arrived.clear()
                    await self._arrived.wait()
        return self._take()

    def _take(self) -> list[_Request]:
        """Takes the first request and those behind it of its shapes, as long as they fit; the cancelled are dropped."""
        batch: list[_Request] = []
        num_rows = 0
        left: deque[_Request] = deque()
        for request in self._waiting:
            if request.answer.cancelled():
                continue
            fits = not batch or (
                request.shapes == batch[0].shapes and num_rows + request.num_rows <= self._policy.max_batch_size
            )
            if fits and not left:
                batch.append(request)
                num_rows += request.num_rows
            else:
                left.append(request)
        self._waiting = left
        return batch
