"""Where requests are read and answers are written: beside the event loop, the long ones behind each other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final, Self, TypeVar, final

from lockstep.errors import OverloadedError

AT_ONCE_BYTES: Final = 16 * 1024
"""What is done on the event loop itself: it takes less than handing it to a thread and back is worth."""
LONG_BYTES: Final = 2**20
NUM_SHORT_THREADS: Final = 2
MAX_HELD_BYTES: Final = 256 * 2**20
"""What the bodies of all requests that are answered at a time may come to."""

Result = TypeVar("Result")


@final
class Lanes:
    """Runs functions in threads: short work never behind long work. Use it as an asynchronous context."""

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
        """Counts a request's body as long as the block goes on.

        Args:
            num_bytes: its size.

        Raises:
            OverloadedError: with it, too much is held; one request alone never is.
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
        """Returns what a function returns, which runs where work of its size does.

        Args:
            work: the function.
            size_bytes: how much it reads or writes.
        """
        if size_bytes <= AT_ONCE_BYTES:
            return work()
        executor = self._long if size_bytes > LONG_BYTES else self._short
        return await asyncio.get_running_loop().run_in_executor(executor, work)
