"""Streams of server-sent events, by which open pages receive what a log grows by.

All who read at the same place wait for the same look at the log, and receive the same HTML. A page that nobody looks at
closes its stream, and goes on with the ``Last-Event-ID`` that it has when somebody does again. A browser opens six
connections to a server at most, so only a few streams of a session stay open: of further ones, each ends with what
there is, and the page asks again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, final

import htpy as h
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from starlette.types import Receive, Scope, Send

from lockstep.errors import AuthenticationError, InvalidInputError, LockstepError, NotFoundError, PermissionDeniedError
from lockstep.service.streams import sends_soon

LOOK_S: Final = 0.25
"""How often a log is looked at while somebody waits for it to grow, in seconds."""
SHARED_S: Final = 1.0
"""How long a growth is kept for those who are a little behind, in seconds."""
RETRY_S: Final = 2.0
"""After how many seconds a log is looked at again that could not be read."""
ADMIT_S: Final = 5.0
"""How often it is checked that a reader is still signed in, in seconds."""
PING_S: Final = 10.0
"""After how many seconds without an event a comment is sent, so that nothing on the way takes the stream for dead."""
MAX_STREAMS_OF_SESSION: Final = 3
SHORT_S: Final = 2 * LOOK_S
"""How long a stream lasts beyond that, in seconds."""
MAX_STREAMS: Final = 400
"""How many streams stay open in all. The service has some hundred connections more for everything else."""
OVER: Final = "over"
"""The event after which a page closes its stream."""
RECONNECT: Final = '{"sse": {"reconnectMaxDelay": "5s"}}'
_OVER: Final = format_sse_event(event=OVER, data_str="")


@final
@dataclass(frozen=True, kw_only=True)
class Growth:
    """What was found after a position.

    Attributes:
        content: its HTML; empty if nothing is to be shown.
        position: the position after it.
        has_more: whether there is more already.
        is_over: whether there will never be more.
    """

    content: str
    position: str
    has_more: bool = False
    is_over: bool = False

    @classmethod
    def of(cls, *content: h.Node, position: str, has_more: bool = False, is_over: bool = False) -> Growth:
        """Returns a growth whose HTML is made now, once for all who receive it."""
        return cls(content=str(h.fragment[content]), position=position, has_more=has_more, is_over=is_over)


Look = Callable[[str], Awaitable[Growth]]
"""Looks once for what comes after a position. If there is nothing, the growth has no content and the same position."""


def growing_item(path: str) -> h.Element:
    """Returns the last item of a list that grows: new items are put before it.

    Args:
        path: the path of the stream, which may change what the item says with `note_element`.
    """
    stream = {"hx-sse:connect": path, "hx-sse:close": OVER, "hx-swap": "beforebegin", "hx-config": RECONNECT}
    return h.li("#growing.muted.later", stream)[note_element("…", is_new=False)]


def note_element(note: h.Node, *, is_new: bool = True) -> h.Element:
    """Returns what the last item says. In an event, it takes the place of what the item said before."""
    return h.span("#growing-note", {"hx-swap-oob": "true"} if is_new else {}, role="status")[note]


@final
class _Wait:
    """A look that is repeated until something has come, and how many wait for it."""

    def __init__(self, task: asyncio.Task[Growth | None]) -> None:
        self.task = task
        self.num_readers = 0


@final
class EventStreams:
    """Serves streams. All methods run in one event loop.

    Args:
        is_ending: whether the service shuts down. Then all streams end.
    """

    def __init__(self, *, is_ending: Callable[[], bool]) -> None:
        self._is_ending = is_ending
        self._waits: dict[Hashable, _Wait] = {}
        self._num_open: Counter[str] = Counter()

    def __len__(self) -> int:
        """Returns how many streams are open."""
        return self._num_open.total()

    def respond(
        self, key: Hashable, look: Look, *, position: str, session: str, admit: Callable[[], Awaitable[object]]
    ) -> EventSourceResponse:
        """Returns a response that sends what comes after a position, as long as its reader stays.

        Args:
            key: what names what is read, and who may see it.
            look: looks for what comes after a position.
            position: where the reader is.
            session: the token of the reader's session.
            admit: raises `AuthenticationError` once the session is over.
        """
        events = self._events(key, look, position=position, session=session, admit=admit)
        return _EventResponse(events, headers={"x-accel-buffering": "no"})  # a proxy such as nginx sends at once

    async def _events(
        self, key: Hashable, look: Look, *, position: str, session: str, admit: Callable[[], Awaitable[object]]
    ) -> AsyncIterator[bytes]:
        clock = asyncio.get_running_loop().time
        with self._opened(session) as stays_open:
            admitted_s, problem, is_behind = clock(), "", True
            while not self._is_ending():
                try:
                    if clock() > admitted_s + ADMIT_S:
                        await admit()
                        admitted_s = clock()
                    growth = await self._grown(key, look, position, at_once=is_behind, stays_open=stays_open)
                except AuthenticationError:
                    return
                except (InvalidInputError, NotFoundError, PermissionDeniedError) as error:
                    yield _event(str(note_element(str(error))), position) + _OVER
                    return
                except LockstepError as error:  # the bucket or the database does not answer
                    if str(error) != problem:
                        problem = str(error)
                        yield _event(str(note_element(problem)), position)
                    growth, is_behind = None, False
                    await asyncio.sleep(RETRY_S)
                else:
                    is_behind = growth is not None and growth.has_more
                    if growth is None:
                        yield KEEPALIVE_COMMENT
                    elif growth.is_over:
                        yield _event(growth.content, growth.position) + _OVER
                        return
                    else:
                        position = growth.position
                        yield _event(growth.content + (str(note_element("…")) if problem else ""), position)
                        problem = ""
                if not stays_open and not is_behind:
                    return

    @contextmanager
    def _opened(self, session: str) -> Iterator[bool]:
        """Counts a stream in the block; yields whether it may stay open."""
        self._num_open[session] += 1
        try:
            yield self._num_open[session] <= MAX_STREAMS_OF_SESSION and len(self) <= MAX_STREAMS
        finally:
            self._num_open[session] -= 1
            if not self._num_open[session]:
                del self._num_open[session]

    async def _grown(
        self, key: Hashable, look: Look, position: str, *, at_once: bool, stays_open: bool
    ) -> Growth | None:
        """Returns what comes after a position; None if nothing has come in time."""
        place = (key, position)
        wait = self._waits.get(place)
        if wait is None:
            wait = self._waits[place] = _Wait(
                asyncio.ensure_future(self._look_until_grown(look, position, at_once=at_once))
            )
            wait.task.add_done_callback(lambda task: self._forget_later(place, task))
        wait.num_readers += 1
        try:
            return await asyncio.wait_for(asyncio.shield(wait.task), PING_S if stays_open else SHORT_S)
        except TimeoutError:
            return None
        finally:
            wait.num_readers -= 1
            if not wait.num_readers and not wait.task.done():
                wait.task.cancel()
                del self._waits[place]

    async def _look_until_grown(self, look: Look, position: str, *, at_once: bool) -> Growth | None:
        """Looks again and again. All looks are at the same moments, so readers at different places soon meet at one."""
        clock = asyncio.get_running_loop().time
        while not self._is_ending():
            if not at_once:
                await asyncio.sleep(LOOK_S - clock() % LOOK_S)
            at_once = False
            growth = await look(position)
            if growth.position != position or growth.is_over:
                return growth
        return None

    def _forget_later(self, place: Hashable, task: asyncio.Task[Growth | None]) -> None:
        if task.cancelled():
            return  # nobody waited any more
        fails = task.exception() is not None
        asyncio.get_running_loop().call_later(0 if fails else SHARED_S, lambda: self._waits.pop(place, None))


@final
class _EventResponse(EventSourceResponse):
    """A stream, which ends if its receiver takes nothing for long."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(TimeoutError):
            await super().__call__(scope, receive, sends_soon(send))


def _event(content: str, position: str) -> bytes:
    """Returns an event, after which a page goes on at a position. Without content, the page stays as it is."""
    return format_sse_event(data_str=content or None, id=position)
