"""The live parts of pages: each is made once for all who look at it, and sent only to those who do not have it yet.

A part is asked for again every second or two by each open page. What grows, a log, is sent instead: see
`lockstep.service.console.event_streams`.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Final, final

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from lockstep.jobs.security.access import Principal
from lockstep.service.console.signing_in import Session

Later = Callable[[float, Callable[[], object]], object]
"""Calls a function after so many seconds, as ``asyncio.AbstractEventLoop.call_later`` does."""

NUM_STEADY_MAX: Final = 200
"""The number of parts with a stamp that are kept after they are old."""


@final
@dataclass(frozen=True, kw_only=True)
class LivePart:
    """A part of a page, as it was made for all who may see the same.

    Attributes:
        content: its HTML, as UTF-8.
        status: the status of the response.
        etag: a digest of both.
        stamp: the number of changes of what it shows, read before it was made; None if it changes without any.
    """

    content: bytes
    status: int
    etag: str
    stamp: int | None = None

    @classmethod
    def of(cls, response: Response, *, stamp: int | None = None) -> LivePart:
        """Returns the part that a response contains."""
        content = bytes(response.body)
        digest = hashlib.blake2b(content, digest_size=12, salt=str(response.status_code).encode()).hexdigest()
        return cls(content=content, status=response.status_code, etag=f'"{digest}"', stamp=stamp)

    def answer(self, request: Request) -> Response:
        """Returns the part; status 304 without content if the reader has it already."""
        headers = {"etag": self.etag}
        if self.status == 200 and request.headers.get("if-none-match") == self.etag:
            return Response(status_code=304, headers=headers)
        return HTMLResponse(self.content, self.status, headers=headers)


Make = Callable[[LivePart | None], Awaitable[LivePart]]
"""Makes a part, or returns the one that was made before."""


def keep_while_unchanged(request: Request) -> None:
    """Says that the part which is being made for a request stays the same until its stamp changes."""
    request.state.is_steady = True


def is_kept_while_unchanged(request: Request) -> bool:
    """Whether `keep_while_unchanged` was called for a request."""
    return getattr(request.state, "is_steady", False)


@final
class LiveParts:
    """Makes live parts, and forgets each when it is old. All methods run in one event loop.

    Args:
        later: calls a function after a time; by default, the event loop does.
    """

    def __init__(self, *, later: Later | None = None) -> None:
        self._later = later
        self._made: dict[Hashable, asyncio.Task[LivePart]] = {}
        self._steady: dict[Hashable, LivePart] = {}

    def __len__(self) -> int:
        """Returns how many parts are kept, or being made."""
        return len(self._made)

    async def get(self, key: Hashable, make: Make, *, fresh_s: float) -> LivePart:
        """Returns a part that was made at most `fresh_s` seconds ago.

        Args:
            key: what names the part and who may see it.
            make: makes it; is given the part that was made before and has a stamp, if it is still kept, and may return
                it again. What it raises is raised to all who wait for it, and not kept.
            fresh_s: how long it is used for, in seconds.
        """
        task = self._made.get(key)
        if task is None:
            task = self._made[key] = asyncio.ensure_future(make(self._steady.get(key)))
            task.add_done_callback(lambda made: self._keep(key, made, fresh_s=fresh_s))
        return await asyncio.shield(task)  # a reader who leaves does not end it for the others

    def _keep(self, key: Hashable, made: asyncio.Task[LivePart], *, fresh_s: float) -> None:
        self._steady.pop(key, None)
        if not made.cancelled() and made.exception() is None and made.result().stamp is not None:
            self._steady[key] = made.result()  # at the end: the one that was not asked for the longest is the first
            if len(self._steady) > NUM_STEADY_MAX:
                del self._steady[next(iter(self._steady))]
        if made.cancelled() or made.exception() is not None or fresh_s <= 0:
            del self._made[key]
        else:
            (self._later or asyncio.get_running_loop().call_later)(fresh_s, lambda: self._made.pop(key))


def shared_view(session: Session) -> Session:
    """Returns a session with the rights of another, but nobody's name and token: a part is the same for all of them."""
    principal = session.principal
    rights = Principal(
        label="", scope=principal.scope, project=principal.project, model=principal.model, version=principal.version
    )
    return Session(principal=rights, csrf_token="")
