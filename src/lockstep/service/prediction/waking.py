"""Holds requests to versions without a server until a server is ready.

Where a version scales, a request that is held has its servers started: this service records how many requests it holds,
and the service that holds the lease sees the demand of all. Where a version does not scale, its server has just ended
and is launched again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final, final

from starlette.concurrency import run_in_threadpool

from lockstep.errors import OverloadedError, UnavailableError
from lockstep.service.prediction.routing import NoServerReadyError, Routes, ServerAddress
from lockstep.service.store import DemandStore, VersionRecord, VersionState

MAX_HELD_REQUESTS: Final = 256
"""The maximum number of requests that a service holds. Further ones are answered with status 429."""
MAX_HELD_BYTES: Final = 128 * 2**20
"""The maximum size of the bodies of all requests that a service holds, in bytes. A single one is never rejected."""
REPLACING_S: Final = 10.0
"""How long a request to a version that does not scale is held while its server is launched again, in seconds."""
NOTE_INTERVAL_S: Final = 0.5
"""The shortest time between two records of the demand for a version, in seconds."""
RETRY_AFTER_S: Final = 10.0
"""After how many seconds a client may send a request again that found no server: about what a start takes."""

Receive = Callable[[], Awaitable[Any]]
"""Receives the next ASGI message of a request."""


@final
class _Waiters:
    """The held requests of one version.

    Attributes:
        servers: the servers, once there are any; or why there will be none.
        number: the number of held requests.
    """

    def __init__(self) -> None:
        self.servers: asyncio.Future[list[ServerAddress]] = asyncio.get_running_loop().create_future()
        self.servers.add_done_callback(_retrieve)
        self.number = 0


@final
class HeldRequest:
    """A request that is held.

    Args:
        join: returns the held requests of its version.
        version: the version.
        deadline: how long it is held, by the event loop's clock.
    """

    def __init__(self, join: Callable[[VersionRecord], _Waiters], *, version: VersionRecord, deadline: float) -> None:
        self._join = join
        self._version = version
        self._deadline = deadline
        self._waiters = join(version)
        self._waiters.number += 1
        self._has_waited = False

    async def wait(self, receive: Receive) -> list[ServerAddress]:
        """Waits until a server of the version is ready; returns the servers.

        Args:
            receive: receives the request's messages. Its body was read, so the next one says that the client has gone.

        Raises:
            UnavailableError: If the time is over first, or the version cannot be served, or the client has gone.
        """
        if self._has_waited:  # what was found then could not be reached
            self.leave()
            self._waiters = self._join(self._version)
            self._waiters.number += 1
        self._has_waited = True
        gone = asyncio.ensure_future(_hang_up(receive))
        try:
            timeout_s = max(0.0, self._deadline - asyncio.get_running_loop().time())
            done, _ = await asyncio.wait(
                (self._waiters.servers, gone), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            gone.cancel()
            with suppress(asyncio.CancelledError):
                await gone
        if self._waiters.servers in done:
            return self._waiters.servers.result()
        if gone in done:
            raise UnavailableError("the client has gone")
        raise _not_woken(self._version)

    async def pause(self) -> None:
        """Waits for a moment after a server could not be reached, until the engine has reported its end.

        Raises:
            UnavailableError: If the time is over.
        """
        left_s = self._deadline - asyncio.get_running_loop().time()
        if left_s <= 0:
            raise _not_woken(self._version)
        await asyncio.sleep(min(left_s, NOTE_INTERVAL_S))

    def leave(self) -> None:
        """Stops holding the request."""
        self._waiters.number -= 1


@final
class Waking:
    """Holds requests until a server of their version is ready. For one event loop. Every service has its own.

    Args:
        routes: finds the servers.
        demands: the store of waiting requests.
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, *, routes: Routes, demands: DemandStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._routes = routes
        self._demands = demands
        self._clock = clock
        self._waiters: dict[str, _Waiters] = {}
        self._watches: set[asyncio.Task[None]] = set()
        self._noted_s: dict[str, float] = {}
        self._num_held = 0
        self._num_bytes = 0

    @asynccontextmanager
    async def hold(self, error: NoServerReadyError, *, size_bytes: int) -> AsyncIterator[HeldRequest]:
        """Yields a held request, which counts as demand for its version while the block runs.

        Args:
            error: the reason why no server was found.
            size_bytes: the size of the request's body, or the largest that it may have, in bytes.

        Raises:
            UnavailableError: If the version is not READY, so that nothing can be waited for; or if its policy is not to
                hold requests. The request starts a server nevertheless.
            OverloadedError: If too many requests, or too many bytes, are held.
        """
        version, hold_s = error.version, _hold_s(error.version)
        if hold_s is None:
            raise error
        if hold_s == 0:
            await self._note_once(version.uid)
            raise _not_woken(version) from error
        self._check_room(size_bytes)
        self._num_held += 1
        self._num_bytes += size_bytes
        held = HeldRequest(self._join, version=version, deadline=asyncio.get_running_loop().time() + hold_s)
        try:
            yield held
        finally:
            held.leave()
            self._num_bytes -= size_bytes
            self._num_held -= 1

    def held(self) -> dict[str, int]:
        """Returns the number of held requests by the uid of their version. Any thread may call it."""
        return {uid: waiters.number for uid, waiters in dict(self._waiters).items()}

    def _check_room(self, size_bytes: int) -> None:
        if self._num_held >= MAX_HELD_REQUESTS:
            received, allowed = f"{self._num_held} of them", f"{MAX_HELD_REQUESTS}"
        elif self._num_held and self._num_bytes + size_bytes > MAX_HELD_BYTES:
            received, allowed = f"{self._num_bytes} bytes of others", f"{MAX_HELD_BYTES} bytes"
        else:
            return
        raise OverloadedError(
            "too many requests wait for prediction servers to start",
            received=received,
            allowed=allowed,
            action="try again later",
            retry_after_s=RETRY_AFTER_S,
        )

    def _join(self, version: VersionRecord) -> _Waiters:
        waiters = self._waiters.get(version.uid)
        if waiters is None:
            waiters = self._waiters[version.uid] = _Waiters()
            watch = asyncio.create_task(self._watch(version, waiters))
            self._watches.add(watch)
            watch.add_done_callback(self._watches.discard)
        return waiters

    async def _watch(self, version: VersionRecord, waiters: _Waiters) -> None:
        """Records the demand for a version until one of its servers is ready, or no request is held any more."""
        try:
            servers = await self._find(version, waiters)
        except Exception as error:  # each held request is answered with it
            self._leave(version, waiters)
            waiters.servers.set_exception(error)
        else:
            self._leave(version, waiters)
            waiters.servers.set_result(servers)
        if version.scaling is not None:
            with suppress(Exception):  # a number that is not written again soon does not count any more
                await run_in_threadpool(self._demands.clear, version.uid)

    async def _find(self, version: VersionRecord, waiters: _Waiters) -> list[ServerAddress]:
        find = partial(self._routes.find, project=version.project, model=version.model, version=version.name)
        await asyncio.sleep(0)  # until the first request is counted
        while waiters.number:
            if version.scaling is not None:
                await run_in_threadpool(self._demands.note, version.uid, num_waiting=waiters.number)
            try:
                return await run_in_threadpool(find)
            except NoServerReadyError as error:
                if error.version.uid != version.uid or _hold_s(error.version) is None:
                    raise
            await asyncio.sleep(NOTE_INTERVAL_S)
        return []

    def _leave(self, version: VersionRecord, waiters: _Waiters) -> None:
        """Removes the held requests of a version, so that later requests are watched anew."""
        if self._waiters.get(version.uid) is waiters:
            del self._waiters[version.uid]

    async def _note_once(self, version_uid: str) -> None:
        """Records that a request needed a server. That counts as one request that waits for a few seconds."""
        now = self._clock()
        self._noted_s = {uid: noted_s for uid, noted_s in self._noted_s.items() if now - noted_s < NOTE_INTERVAL_S}
        if version_uid not in self._noted_s:
            self._noted_s[version_uid] = now
            await run_in_threadpool(self._demands.note, version_uid, num_waiting=1)


def _hold_s(version: VersionRecord) -> float | None:
    """Returns how long a request to a version without a server is held, in seconds; None if no server will start."""
    if version.state is not VersionState.READY:
        return None
    return REPLACING_S if version.scaling is None else version.scaling.wake_timeout_s


def _not_woken(version: VersionRecord) -> UnavailableError:
    return UnavailableError(
        f"version {version.name} of model {version.model} has no prediction server that is ready; one is being started",
        action=f"try again in {RETRY_AFTER_S:.0f} s",
        retry_after_s=RETRY_AFTER_S,
    )


async def _hang_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _retrieve(servers: asyncio.Future[list[ServerAddress]]) -> None:
    """Marks an error as retrieved, since no request may be held any more that would be answered with it."""
    if not servers.cancelled():
        servers.exception()
