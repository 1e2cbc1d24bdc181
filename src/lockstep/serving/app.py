"""The prediction server's HTTP interface: ``POST /predict``, ``GET /healthz``, and the Open Inference Protocol.

It is a plain ASGI application. There are few routes, and the time that a framework takes for each request would be
several times that of the model. `lockstep.serving.protocols` reads and writes the forms of requests.
"""

from __future__ import annotations

import asyncio
import hmac
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, final

import orjson
from starlette.types import Receive, Scope, Send

from lockstep.errors import (
    AuthenticationError,
    BodyTooLargeError,
    LockstepError,
    MediaTypeError,
)
from lockstep.heartbeat import SEND_INTERVAL_S, report_progress
from lockstep.serving.answering import AbstractAnswering, Served, answering_with
from lockstep.serving.batch_policy import BatchPolicy
from lockstep.serving.deadlines import TIMEOUT_HEADER, deadline_passed, read_timeout
from lockstep.serving.lanes import Lanes
from lockstep.serving.open_requests import OpenRequests
from lockstep.serving.protocols.inference import describe_server
from lockstep.serving.protocols.inference_paths import InferencePath, Verb, find_path
from lockstep.serving.protocols.questions import Content
from lockstep.tensors import HEADER_LENGTH

MAX_BODY_BYTES: Final = 32 * 2**20
HTTP_CLIENT_GONE: Final = 499
WATCH_AFTER_S: Final = 0.05
"""When to begin to watch whether a client disconnects, in seconds after its request."""
HEALTH_PATH: Final = "/healthz"
_METHODS: Final = {"/predict": "POST", HEALTH_PATH: "GET"}
_TIMEOUT_HEADER: Final = TIMEOUT_HEADER.encode()


@final
@dataclass(frozen=True, kw_only=True)
class AppOptions:
    """The options of the HTTP interface.

    Attributes:
        token: the bearer token that ``POST /predict`` requires.
        policy: the policy of batching requests.
        max_body_bytes: the maximum size of a request's body, in bytes.
        on_ready: called once, just before requests are accepted.
    """

    token: str
    policy: BatchPolicy
    max_body_bytes: int = MAX_BODY_BYTES
    on_ready: Callable[[], None] | None = None


class _ClientGoneError(Exception):
    """The client has closed the connection before the response."""


@final
class PredictApp:
    """The ASGI application of one model.

    ``POST /predict`` takes ``{"instances": [...]}`` with the bearer token and answers ``{"predictions": [...]}``, or
    ``{"error": "..."}`` with the error's HTTP status. ``/v2/...`` are the paths of the Open Inference Protocol, for
    every name of the model. ``GET /healthz`` and the protocol's health paths need no token.

    Args:
        served: the model, the custom prediction routine, or the server in a container.
        options: the options of the interface.
    """

    def __init__(self, served: Served, *, options: AppOptions) -> None:
        self._options = options
        self._authorization = f"Bearer {options.token}".encode()
        self._lanes = Lanes()
        self._answering = answering_with(served, policy=options.policy, lanes=self._lanes)
        self._requests = OpenRequests()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request, or the start and end of the server."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            status, content = await self._respond(scope, receive)
            headers = [*content.headers, (b"content-length", b"%d" % len(content.body))]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": content.body})

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        async with self._answering, self._lanes:
            if self._options.on_ready is not None:
                self._options.on_ready()
            beats = asyncio.create_task(_send_heartbeats(self._answering, self._requests))
            await send({"type": "lifespan.startup.complete"})
            await receive()
            beats.cancel()
        await send({"type": "lifespan.shutdown.complete"})

    async def _respond(self, scope: Scope, receive: Receive) -> tuple[int, Content]:
        """Returns the status and the content of the response to a request."""
        path = find_path(scope["path"])
        allowed = _METHODS.get(scope["path"]) if path is None else path.method
        if allowed is None:
            return 404, _error("there is no such path")
        if scope["method"] != allowed:
            return 405, _error(f"the method is not {allowed}", (b"allow", allowed.encode()))
        if scope["path"] == HEALTH_PATH:
            return 200, Content(body=b'{"status":"ok"}')
        try:
            headers = dict(scope["headers"])
            if allowed == "GET":
                assert path is not None, "all other paths of this method were found above"
                return 200, self._describe(path, headers)
            return 200, await self._predict(path, headers, receive)
        except LockstepError as error:
            wait = error.retry_after_s
            retry = () if wait is None else ((b"retry-after", b"%d" % math.ceil(wait)),)
            return error.http_status, _error(str(error), *retry)
        except _ClientGoneError:
            return HTTP_CLIENT_GONE, _error("the client has gone")

    def _describe(self, path: InferencePath, headers: Mapping[bytes, bytes]) -> Content:
        if path.verb is not Verb.MODEL:
            return describe_server(path)
        self._check_token(headers)
        return self._answering.describe(path)

    async def _predict(self, path: InferencePath | None, headers: Mapping[bytes, bytes], receive: Receive) -> Content:
        self._check_token(headers)
        timeout = headers.get(_TIMEOUT_HEADER)
        timeout_s = None if timeout is None else read_timeout(timeout.decode("latin-1"))
        encoding = headers.get(b"content-encoding", b"identity")
        if encoding != b"identity":
            raise MediaTypeError("Content-Encoding", received=encoding.decode("latin-1"), allowed="identity")
        with self._requests.counting():
            body = await _read_body(receive, self._options.max_body_bytes)
            with self._lanes.holding(len(body)), _Waiting(receive, timeout_s=timeout_s):
                if path is None:
                    return await self._answering.answer(body)
                return await self._answering.infer(body, path, header_length=headers.get(HEADER_LENGTH.encode()))

    def _check_token(self, headers: Mapping[bytes, bytes]) -> None:
        if not hmac.compare_digest(headers.get(b"authorization", b""), self._authorization):
            raise AuthenticationError(
                "the request is not authorised",
                allowed="the header Authorization: Bearer TOKEN with this server's token",
            )


def _error(message: str, *headers: tuple[bytes, bytes]) -> Content:
    return Content(body=orjson.dumps({"error": message}), headers=((b"content-type", b"application/json"), *headers))


async def _send_heartbeats(answering: AbstractAnswering, requests: OpenRequests) -> None:
    """Reports that requests are answered, and how many. Stays silent while a run takes too long."""
    while True:
        if not answering.is_stuck:
            report_progress(
                requests=answering.num_requests,
                waiting=answering.num_waiting,
                open=requests.num_open,
                openSeconds=requests.open_s,
                busySeconds=requests.busy_s,
                **answering.batches.to_metrics(),
            )
        await asyncio.sleep(SEND_INTERVAL_S)


async def _read_body(receive: Receive, max_bytes: int) -> bytes:
    chunks: list[bytes] = []
    num_bytes = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _ClientGoneError
        chunk = message.get("body", b"")
        num_bytes += len(chunk)
        if num_bytes > max_bytes:
            raise BodyTooLargeError(
                "the request is too large", allowed=f"{max_bytes} bytes", action="send fewer instances at a time"
            )
        chunks.append(chunk)
        if not message.get("more_body", False):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)


@final
class _Waiting:
    """Cancels what the current task does if the client does not wait for it any more. Use it as a context manager.

    Args:
        receive: the ASGI function that says when the client disconnects.
        timeout_s: how long the client waits, in seconds; None if it does not say.

    Raises:
        _ClientGoneError: the client has disconnected.
        DeadlineError: the client's time is over.
    """

    def __init__(self, receive: Receive, *, timeout_s: float | None) -> None:
        self._receive = receive
        self._timeout_s = timeout_s
        self._error: Exception | None = None
        self._watching: asyncio.Task[None] | None = None
        self._timers: list[asyncio.TimerHandle] = []

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        # Most answers are there sooner, and a task for each request would cost as much as the rest of it.
        self._timers.append(loop.call_later(WATCH_AFTER_S, self._watch))
        if self._timeout_s is not None:
            self._timers.append(loop.call_later(self._timeout_s, self._end, deadline_passed(self._timeout_s)))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for timer in self._timers:
            timer.cancel()
        if self._watching is not None:
            self._watching.cancel()
        # Another cancellation, such as that of the server's end, has to go on.
        if self._error is not None and self._task.uncancel() == 0 and kind is asyncio.CancelledError:
            raise self._error from None

    def _watch(self) -> None:
        self._watching = asyncio.ensure_future(self._hang_up())

    async def _hang_up(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._end(_ClientGoneError())

    def _end(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
            self._task.cancel()
