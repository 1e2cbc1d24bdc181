"""Answers the bodies of requests: with a model that takes arrays, or with a routine of the user's own."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Self, final

from lockstep.errors import OverloadedError
from lockstep.serving.abstract_model import AbstractModel
from lockstep.serving.batcher import Batcher, BatchPolicy
from lockstep.serving.instances import (
    Arrays,
    InputSpec,
    cast_exactly,
    read_document,
    read_instances,
    read_request,
    write_response,
)
from lockstep.serving.lanes import Lanes
from lockstep.serving.number_lists import read_numbers
from lockstep.serving.routine import Routine

AT_ONCE_BYTES: Final = 64 * 1024
"""Lists of numbers in bodies of up to this size are read on the event loop. It takes a tenth of a millisecond."""
BYTES_OF_A_NUMBER: Final = 10
"""The approximate size of one number in a JSON response."""


class AbstractAnswering(ABC):
    """Answers requests, on one event loop. Use it as an asynchronous context manager."""

    @property
    @abstractmethod
    def num_requests(self) -> int:
        """The number of requests so far."""

    @property
    @abstractmethod
    def num_batches(self) -> int:
        """The number of runs of the model, or calls of the routine, so far."""

    @property
    @abstractmethod
    def num_instances(self) -> int:
        """The number of instances in them."""

    @property
    @abstractmethod
    def num_waiting(self) -> int:
        """The number of requests that wait for a run."""

    @property
    @abstractmethod
    def run_s(self) -> float:
        """How long the current run has taken so far, the longest of them, in seconds; 0 if nothing runs."""

    @abstractmethod
    async def answer(self, body: bytes) -> bytes:
        """Answers the body of one request. If the call is cancelled before its run begins, it does not run.

        Raises:
            LockstepError: the request is wrong, or cannot be answered; the error says the HTTP status.
        """

    @abstractmethod
    async def __aenter__(self) -> Self:
        """Begins to answer."""

    @abstractmethod
    async def __aexit__(self, *_: object) -> None:
        """Cancels what waits, and waits for what runs."""


def answering_with(served: AbstractModel | Routine, *, policy: BatchPolicy, lanes: Lanes) -> AbstractAnswering:
    """Returns what answers requests with a model or a routine.

    Args:
        served: the model, warmed up, or the routine.
        policy: how requests share runs. For a routine, only the number that may wait counts.
        lanes: runs what takes long apart from the event loop.
    """
    if isinstance(served, Routine):
        return RoutineAnswering(served, max_waiting=policy.max_waiting, lanes=lanes)
    return ModelAnswering(served, policy=policy, lanes=lanes)


@final
class ModelAnswering(AbstractAnswering):
    """Answers with a model; requests that wait share its runs.

    Args:
        model: the model, warmed up.
        policy: the policy of batching requests.
        lanes: parses requests and writes responses.
    """

    def __init__(self, model: AbstractModel, *, policy: BatchPolicy, lanes: Lanes) -> None:
        self._model = model
        size = min(policy.max_batch_size, model.max_batch_size)
        self._batcher = Batcher(model.predict, policy=replace(policy, max_batch_size=size))
        self._lanes = lanes

    @property
    def num_requests(self) -> int:
        """The number of requests so far."""
        return self._batcher.num_requests

    @property
    def num_batches(self) -> int:
        """The number of runs of the model so far."""
        return self._batcher.num_batches

    @property
    def num_instances(self) -> int:
        """The number of instances in them."""
        return self._batcher.num_instances

    @property
    def num_waiting(self) -> int:
        """The number of requests that wait for a run."""
        return self._batcher.num_waiting

    @property
    def run_s(self) -> float:
        """How long the current run has taken so far, in seconds."""
        return self._batcher.run_s

    async def answer(self, body: bytes) -> bytes:
        """Answers ``{"instances": [...]}`` with ``{"predictions": [...]}``; see `AbstractAnswering.answer`."""
        model, lanes = self._model, self._lanes
        arrays = _read_numbers(body, model.inputs) if len(body) <= AT_ONCE_BYTES else None
        if arrays is None:
            arrays = await lanes.run(partial(_read, body, model.inputs), size_bytes=len(body))
        outputs = await self._batcher.submit(arrays)
        num_values = sum(array.size for array in outputs.values())
        write = partial(write_response, outputs, names=model.output_names)
        return await lanes.run(write, size_bytes=num_values * BYTES_OF_A_NUMBER)

    async def __aenter__(self) -> Self:
        await self._batcher.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._batcher.__aexit__()


def _read(body: bytes, specs: Sequence[InputSpec]) -> Arrays:
    numbers = _read_numbers(body, specs) if len(body) > AT_ONCE_BYTES else None
    return read_instances(read_request(body), specs=specs) if numbers is None else numbers


def _read_numbers(body: bytes, specs: Sequence[InputSpec]) -> Arrays | None:
    """Returns the instances if they are lists of numbers for one input, which is fast; None for all others."""
    if len(specs) != 1:
        return None
    numbers = read_numbers(body, specs[0])
    array = None if numbers is None else cast_exactly(numbers, specs[0].dtype)
    return None if array is None else {specs[0].name: array}


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
        self._num_calls = 0
        self._num_instances = 0

    @property
    def num_requests(self) -> int:
        """The number of requests so far."""
        return self._num_requests

    @property
    def num_batches(self) -> int:
        """The number of calls so far."""
        return self._num_calls

    @property
    def num_instances(self) -> int:
        """The number of instances in them."""
        return self._num_instances

    @property
    def num_waiting(self) -> int:
        """The number of requests that wait for a call."""
        return len(self._waiting)

    @property
    def run_s(self) -> float:
        """How long the longest of the current calls has taken so far, in seconds; 0 if there is none."""
        return time.monotonic() - min(self._starts.values()) if self._starts else 0.0

    async def answer(self, body: bytes) -> bytes:
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
        return await call.answer

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
            self._num_calls += 1
            self._num_instances += len(call.instances)
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
