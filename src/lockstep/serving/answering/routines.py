"""Answers requests with a custom prediction routine."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Self, final

from lockstep.errors import InvalidInputError, OverloadedError
from lockstep.serving.answering import base
from lockstep.serving.answering.base import AbstractAnswering
from lockstep.serving.batch_counts import BatchCounts
from lockstep.serving.instances import read_document
from lockstep.serving.lanes import Lanes
from lockstep.serving.protocols.inference_paths import InferencePath
from lockstep.serving.protocols.questions import Content
from lockstep.serving.routine import Routine


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Call:
    instances: list[object]
    parameters: Mapping[str, object]
    answer: asyncio.Future[bytes]


@final
class RoutineAnswering(AbstractAnswering):
    """Answers with a custom prediction routine: each request is one call, and calls wait for each other.

    Args:
        routine: the routine.
        max_waiting: the maximum number of requests that wait for a call. Further requests are rejected.
        lanes: parses requests.
    """

    def __init__(self, routine: Routine, *, max_waiting: int, lanes: Lanes) -> None:
        self._routine = routine
        self._max_waiting = max_waiting
        self._lanes = lanes
        self._waiting: deque[_Call] = deque()
        self._arrived = asyncio.Event()
        self._executor = ThreadPoolExecutor(routine.num_threads, "routine")
        self._tasks: list[asyncio.Task[None]] = []
        self._starts: dict[int, float] = {}
        self._num_requests = 0
        self._batches = BatchCounts()

    @property
    def num_requests(self) -> int:
        """The number of requests so far."""
        return self._num_requests

    @property
    def batches(self) -> BatchCounts:
        """The counts of the calls so far."""
        return self._batches

    @property
    def num_waiting(self) -> int:
        """The number of requests that wait for a call."""
        return len(self._waiting)

    @property
    def is_stuck(self) -> bool:
        """Whether the longest of the current calls takes too long."""
        return bool(self._starts) and time.monotonic() - min(self._starts.values()) > base.MAX_RUN_S

    async def infer(self, body: bytes, path: InferencePath, *, header_length: bytes | None) -> Content:
        """Refuses tensors, since nobody knows which ones the routine takes."""
        raise _only_instances()

    def describe(self, path: InferencePath) -> Content:
        """Refuses to describe tensors, since nobody knows which ones the routine takes."""
        raise _only_instances()

    async def answer(self, body: bytes) -> Content:
        """Answers ``{"instances": [...], ...}``; see `AbstractAnswering.answer`."""
        instances, parameters = await self._lanes.run(partial(read_document, body), size_bytes=len(body))
        if len(self._waiting) >= self._max_waiting:
            self._waiting = deque(call for call in self._waiting if not call.answer.done())
        if len(self._waiting) >= self._max_waiting:
            raise OverloadedError(
                "the prediction server has too many requests waiting",
                received=f"{len(self._waiting)} waiting",
                allowed=f"{self._max_waiting}",
                action="try again later",
            )
        call = _Call(instances=instances, parameters=parameters, answer=asyncio.get_running_loop().create_future())
        self._waiting.append(call)
        self._num_requests += 1
        self._arrived.set()
        return Content(body=await call.answer)

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._serve(number)) for number in range(self._routine.num_threads)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task
        for call in self._waiting:
            call.answer.cancel()
        self._executor.shutdown()

    async def _serve(self, number: int) -> None:
        """Makes one call after the other, in a thread."""
        loop = asyncio.get_running_loop()
        while True:
            call = await self._next_call()
            self._starts[number] = time.monotonic()
            self._batches.add(len(call.instances))
            try:
                run = partial(self._routine.predict, call.instances, call.parameters)
                answer = await loop.run_in_executor(self._executor, run)
            except asyncio.CancelledError:
                call.answer.cancel()
                raise
            except Exception as error:  # passed to its request; the loop continues with the next one
                if not call.answer.done():
                    call.answer.set_exception(error)
            else:
                if not call.answer.done():
                    call.answer.set_result(answer)
            finally:
                del self._starts[number]

    async def _next_call(self) -> _Call:
        while True:
            while not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
            call = self._waiting.popleft()
            if not call.answer.done():  # its client still waits
                return call


def _only_instances() -> InvalidInputError:
    return InvalidInputError(
        "a custom prediction routine takes no tensors",
        received="a request of the Open Inference Protocol",
        allowed='{"instances": [...]}, which :predict takes',
    )
