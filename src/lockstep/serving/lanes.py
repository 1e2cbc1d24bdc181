"""Parses requests and writes responses in threads: long work in one thread, short work in others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final, Self, TypeVar, final

from lockstep.errors import OverloadedError

AT_ONCE_BYTES: Final = 16 * 1024
"""Work of up to this size is done on the event loop, because passing it to a thread would cost more."""
LONG_BYTES: Final = 2**20
NUM_SHORT_THREADS: Final = 2
MAX_HELD_BYTES: Final = 256 * 2**20
"""The maximum size of the bodies of all requests that are being answered, in bytes."""

Result = TypeVar("Result")


@final
class Lanes:
    """Runs functions in threads, so that short work never waits for long work.

    Use it as an asynchronous context manager.
    """

    def __init__(self) -> None:
        self._short = ThreadPoolExecutor(NUM_SHORT_THREADS, "short")
        self._long = ThreadPoolExecutor(1, "long")
        self._num_bytes_held = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for executor in (self._short, self._long):
            executor.shutdown(wait=False, cancel_futures=True)

    @contextmanager
    def holding(self, num_bytes: int) -> Iterator[None]:
        """Counts the size of a request's body while the block runs.

        Args:
            num_bytes: the size of the body.

        Raises:
            OverloadedError: the bodies would exceed `MAX_HELD_BYTES` together. A single request is never rejected.
        """
        if self._num_bytes_held and self._num_bytes_held + num_bytes > MAX_HELD_BYTES:
            raise OverloadedError(
                "the prediction server holds too many large requests",
                received=f"{self._num_bytes_held} bytes of others",
                allowed=f"{MAX_HELD_BYTES} bytes",
                action="try again later",
            )
        self._num_bytes_held += num_bytes
        try:
            yield
        finally:
            self._num_bytes_held -= num_bytes

    async def run(self, work: Callable[[], Result], *, size_bytes: int) -> Result:
        """Runs a function on the event loop or in a thread, depending on the size of its work, and returns its result.

        Args:
            work: the function.
            size_bytes: the number of bytes that the function reads or writes.
        """
        if size_bytes <= AT_ONCE_BYTES:
            return work()
        executor = self._long if size_bytes > LONG_BYTES else self._short
        return await asyncio.get_running_loop().run_in_executor(executor, work)
