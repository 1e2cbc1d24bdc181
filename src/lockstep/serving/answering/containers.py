"""Answers requests with a server in a container of the user's own, to which it forwards them."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from contextlib import suppress
from typing import Final, Self, final

import aiohttp

from lockstep.errors import InvalidInputError, OverloadedError, RoutineError
from lockstep.serving.answering import base
from lockstep.serving.answering.base import AbstractAnswering, ContainerServer
from lockstep.serving.answers import MAX_ANSWER_BYTES, read_answer
from lockstep.serving.batch_counts import BatchCounts
from lockstep.serving.protocols.inference_paths import InferencePath
from lockstep.serving.protocols.questions import Content

HEALTH_INTERVAL_S: Final = 1.0
"""The pause between two health checks, in seconds."""
HEALTH_TIMEOUT_S: Final = 10.0
"""How long the answer to a health check may take, in seconds, as the contract has it."""
SILENT_S: Final = 5.0
"""How long the container may answer nothing while it has no requests, in seconds. After that, it counts as stuck."""
_SHOWN_BYTES: Final = 500
_SHOWN_TEXTS: Final = ("application/json", "text/plain")
_OK: Final = 200
_REFUSED: Final = range(400, 500)
_OVERLOADED: Final = (429, 503)


@final
class ContainerAnswering(AbstractAnswering):
    """Forwards requests to a server in a container, each as it is, and checks whether the server is healthy.

    Entering it waits until the server is healthy.

    Args:
        server: the server.
        max_open: the maximum number of requests that the server has at the same time. Further requests are rejected.
    """

    def __init__(self, server: ContainerServer, *, max_open: int) -> None:
        self._server = server
        self._max_open = max_open
        self._num_requests = 0
        self._num_open = 0
        self._answered_s = time.monotonic()
        self._is_asked = False
        self._is_healthy = True
        self._session: aiohttp.ClientSession | None = None
        self._checks: asyncio.Task[None] | None = None

    @property
    def num_requests(self) -> int:
        """The number of requests so far."""
        return self._num_requests

    @property
    def batches(self) -> BatchCounts:
        """No counts: nobody knows how the container runs its model."""
        return BatchCounts()

    @property
    def num_waiting(self) -> int:
        """0: requests are forwarded at once."""
        return 0

    @property
    def is_stuck(self) -> bool:
        """Whether the container is not healthy, or has answered nothing for too long.

        A server with one thread answers no health check while it computes, even after the client has gone. So once it
        has a request, it may be as silent as the run of a model.
        """
        limit_s = base.MAX_RUN_S if self._is_asked else SILENT_S
        return not self._is_healthy or time.monotonic() - self._answered_s > limit_s

    async def answer(self, body: bytes) -> Content:
        """Forwards a request; see `AbstractAnswering.answer`."""
        if self._num_open >= self._max_open:
            raise OverloadedError(
                "the prediction server has too many requests",
                received=f"{self._num_open} at the same time",
                allowed=f"{self._max_open}",
                action="try again later",
            )
        assert self._session is not None
        self._num_requests += 1
        self._num_open += 1
        self._is_asked = True
        try:
            async with self._session.post(
                f"{self._server.url}{self._server.predict_route}",
                data=body,
                headers={"content-type": "application/json"},
                allow_redirects=False,
            ) as answer:
                content = await _read(answer)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise RoutineError(f"the container did not answer: {type(error).__name__}: {error}") from None
        finally:
            self._num_open -= 1
        self._note_answer()
        if answer.status == _OK:
            return _predictions(answer, content)
        said = f"the container answered with status {answer.status}{_quote(answer, content)}"
        if answer.status in _OVERLOADED:
            raise OverloadedError(said)
        raise InvalidInputError(said) if answer.status in _REFUSED else RoutineError(said)

    async def infer(self, body: bytes, path: InferencePath, *, header_length: bytes | None) -> Content:
        """Refuses tensors, since nobody knows which ones the container takes."""
        raise _only_instances()

    def describe(self, path: InferencePath) -> Content:
        """Refuses to describe tensors, since nobody knows which ones the container takes."""
        raise _only_instances()

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=HEALTH_TIMEOUT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )
        try:
            said = ""
            while (problem := await self._find_problem()) is not None:
                if problem != said:
                    sys.stderr.write(f"its container is not ready: {problem}\n")
                    said = problem
                await asyncio.sleep(HEALTH_INTERVAL_S)
        except BaseException:
            await self._session.close()
            raise
        self._checks = asyncio.create_task(self._check())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._checks is not None
        assert self._session is not None
        self._checks.cancel()
        with suppress(asyncio.CancelledError):
            await self._checks
        await self._session.close()

    async def _check(self) -> None:
        said: str | None = None
        while True:
            await asyncio.sleep(HEALTH_INTERVAL_S)
            before = said
            said = await self._find_problem()
            if said not in (None, before):
                sys.stderr.write(f"its container is not healthy: {said}\n")

    def _note_answer(self) -> None:
        self._answered_s = time.monotonic()
        self._is_asked = self._num_open > 0

    async def _find_problem(self) -> str | None:
        """Asks the health route; returns why the server is not healthy, or None if it is.

        A server that does not answer may be busy: `is_stuck` says when that takes too long.
        """
        assert self._session is not None
        route = self._server.health_route
        try:
            async with (
                asyncio.timeout(HEALTH_TIMEOUT_S),
                self._session.get(f"{self._server.url}{route}", allow_redirects=False) as answer,
            ):
                content = await _read(answer)
        except (aiohttp.ClientError, TimeoutError) as error:
            return f"no answer to GET {route} ({type(error).__name__})"
        self._note_answer()
        self._is_healthy = answer.status == _OK
        return None if self._is_healthy else f"GET {route} says {answer.status}{_quote(answer, content)}"


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    content = await read_answer(answer)
    if content is None:
        raise RoutineError("the answer of the container is too long", allowed=f"{MAX_ANSWER_BYTES} bytes")
    return content


def _predictions(answer: aiohttp.ClientResponse, content: bytes) -> Content:
    if answer.content_type != "application/json":
        raise RoutineError(
            "the container's answer", received=f"Content-Type {answer.content_type}", allowed="application/json"
        )
    return Content(body=content)


def _quote(answer: aiohttp.ClientResponse, content: bytes) -> str:
    """Returns ": " and the beginning of a response in text, in one line; "" for any other."""
    if answer.content_type not in _SHOWN_TEXTS:
        return ""
    words = " ".join(content[:_SHOWN_BYTES].decode(errors="replace").split())
    return f": {json.dumps(words, ensure_ascii=False)}" if words else ""


def _only_instances() -> InvalidInputError:
    return InvalidInputError(
        "a version in a container takes no tensors",
        received="a request of the Open Inference Protocol",
        allowed='{"instances": [...]}, which :predict takes',
    )
