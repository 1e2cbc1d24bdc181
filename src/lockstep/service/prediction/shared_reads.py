"""Has requests that need the same read of the database at the same time share one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Any, TypeVar, final

from starlette.concurrency import run_in_threadpool

Result = TypeVar("Result")


@final
class SharedReads:
    """Reads that are in progress. For one event loop.

    A read runs in a thread, because a slow database would delay all other requests on the event loop. It goes on if the
    request that began it is cancelled, since others may wait for it.
    """

    def __init__(self) -> None:
        self._reads: dict[Hashable, asyncio.Task[Any]] = {}

    async def read(self, key: Hashable, read: Callable[[], Result]) -> Result:
        """Returns the result of a read, which is begun unless one with the same key is in progress.

        Args:
            key: names what is read.
            read: reads it; may block.

        Raises:
            Exception: What the read has raised.
        """
        task: asyncio.Task[Result] | None = self._reads.get(key)
        if task is None:
            task = self._reads[key] = asyncio.create_task(run_in_threadpool(read))
            task.add_done_callback(lambda done: self._end(key, done))
        return await asyncio.shield(task)

    async def read_anew(self, key: Hashable, read: Callable[[], Result]) -> Result:
        """Returns the result of a read that begins after this call; see `read`."""
        if (earlier := self._reads.get(key)) is not None:
            await asyncio.wait([earlier])
        return await self.read(key, read)

    def _end(self, key: Hashable, task: asyncio.Task[Any]) -> None:
        del self._reads[key]
        if not task.cancelled():
            task.exception()  # marks it as retrieved, since no request may wait for it any more
