"""The threads in which requests block, divided so that slow requests of one kind do not keep others waiting.

All other requests share the threads of Starlette, of which there are 40.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from enum import Enum
from typing import Any, Final, ParamSpec, TypeVar

import anyio
from anyio import to_thread
from anyio.lowlevel import RunVar

P = ParamSpec("P")
T = TypeVar("T")


class Pool(Enum):
    """What threads are kept for. The value is how many requests use them at once; more wait for their turn."""

    SIGN_IN = ("sign-in", 8)
    """Looks up the keys of requests."""
    CONSOLE = ("console", 8)
    """Makes the pages of the console."""
    BUCKET = ("bucket", 12)
    """Reads logs, metrics and files of jobs from buckets, which may be slow or not answer."""
    DOWNLOAD = ("download", 8)
    """Reads pieces of files that are downloaded. A piece that is being sent needs no thread."""


_LIMITERS: Final[RunVar[dict[Pool, anyio.CapacityLimiter]]] = RunVar("lockstep_limiters")


async def run_in(pool: Pool, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Calls a function in one of the threads of a pool, and returns what it returns.

    Args:
        pool: the pool.
        function: the function, which may block.
        *args: its positional arguments.
        **kwargs: its keyword arguments.
    """
    try:
        limiters = _LIMITERS.get()
    except LookupError:  # the first request of this event loop
        limiters = {each: anyio.CapacityLimiter(each.value[1]) for each in Pool}
        _LIMITERS.set(limiters)
    return await to_thread.run_sync(functools.partial(function, *args, **kwargs), limiter=limiters[pool])


_POOL: Final = "lockstep_pool"

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


def runs_in(pool: Pool) -> Callable[[Endpoint], Endpoint]:
    """Declares the pool in whose threads a route or a page runs. This decorator goes below the route's path."""

    def declare(endpoint: Endpoint) -> Endpoint:
        setattr(endpoint, _POOL, pool)
        return endpoint

    return declare


def pool_of(endpoint: Callable[..., Any]) -> Pool | None:
    """Returns the pool that a route or a page declares; None if it declares none."""
    return getattr(endpoint, _POOL, None)


def in_its_pool(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    """Returns an endpoint that runs in the threads that it declares; the endpoint itself if it declares none."""
    pool = pool_of(endpoint)
    if pool is None:
        return endpoint

    @functools.wraps(endpoint)
    async def run(*args: Any, **kwargs: Any) -> Any:
        return await run_in(pool, endpoint, *args, **kwargs)

    return run
