"""The live parts of pages: each is made once for all who look at it, and sent only to those who do not have it yet.

A part is asked for again every second or two by each open page. Polls rather than a stream of events: a browser opens
six connections to a server at most, so the seventh open tab with a stream would get nothing any more.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Final, final

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from lockstep.jobs.security.access import Principal
from lockstep.service.console.signing_in import Session

MAX_PARTS: Final = 1000
"""How many parts are kept at most. What is not fresh any more goes first."""


@final
@dataclass(frozen=True, kw_only=True)
class LivePart:
    """A part of a page, as it was made for all who may see the same.

    Attributes:
        content: its HTML, as UTF-8.
        status: the status of the response.
        etag: a digest of both.
    """

    content: bytes
    status: int
    etag: str

    @classmethod
    def of(cls, response: Response) -> LivePart:
        """Returns the part that a response contains."""
        content = bytes(response.body)
        digest = hashlib.blake2b(content, digest_size=12, salt=str(response.status_code).encode()).hexdigest()
        return cls(content=content, status=response.status_code, etag=f'"{digest}"')

    def answer(self, request: Request) -> Response:
        """Returns the part; status 304 without content if the reader has it already."""
        headers = {"etag": self.etag}
        if self.status == 200 and request.headers.get("if-none-match") == self.etag:
            return Response(status_code=304, headers=headers)
        return HTMLResponse(self.content, self.status, headers=headers)


@final
@dataclass(kw_only=True)
class _Made:
    """A part that is made, or was.

    Attributes:
        task: makes it.
        until_s: when it has to be made again, by the clock; None while it is made.
    """

    task: asyncio.Task[LivePart]
    until_s: float | None = None


@final
class LiveParts:
    """Makes live parts. All methods run in one event loop.

    Args:
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._made: dict[Hashable, _Made] = {}

    def __len__(self) -> int:
        """Returns how many parts are kept."""
        return len(self._made)

    async def get(self, key: Hashable, make: Callable[[], Awaitable[LivePart]], *, fresh_s: float) -> LivePart:
        """Returns a part that was made at most `fresh_s` seconds ago.

        Args:
            key: what names the part and who may see it.
            make: makes it. What it raises is raised to all who wait for it, and not kept.
            fresh_s: how long it is used for, in seconds.
        """
        made = self._made.get(key)
        if made is None or (made.until_s is not None and made.until_s <= self._clock()):
            self._forget_old()
            made = self._made[key] = _Made(task=asyncio.ensure_future(make()))
            made.task.add_done_callback(lambda task: self._keep(key, task, fresh_s=fresh_s))
        return await asyncio.shield(made.task)  # a reader who leaves does not end it for the others

    def _keep(self, key: Hashable, task: asyncio.Task[LivePart], *, fresh_s: float) -> None:
        if task.cancelled() or task.exception() is not None:
            self._made.pop(key, None)
        else:
            self._made[key].until_s = self._clock() + fresh_s

    def _forget_old(self) -> None:
        if len(self._made) < MAX_PARTS:
            return
        now_s = self._clock()
        self._made = {key: made for key, made in self._made.items() if made.until_s is None or made.until_s > now_s}
        for key in list(self._made)[: max(0, len(self._made) - MAX_PARTS + 1)]:
            if self._made[key].until_s is not None:
                del self._made[key]


def shared_view(session: Session) -> Session:
    """Returns a session with the rights of another, but nobody's name and token: a part is the same for all of them."""
    principal = session.principal
    rights = Principal(
        label="", scope=principal.scope, project=principal.project, model=principal.model, version=principal.version
    )
    return Session(principal=rights, csrf_token="")
