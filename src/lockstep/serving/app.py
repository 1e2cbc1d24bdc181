"""The prediction server's HTTP interface: ``POST /predict``, ``GET /healthz``, and the Open Inference Protocol.

It is a plain ASGI application. There are few routes, and the time that a framework takes for each request would be
several times that of the model. `lockstep.serving.protocols` reads and writes the forms of requests.
"""

from __future__ import annotations

import asyncio
import hmac
import math
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, final

import orjson
from starlette.types import Receive, Scope, Send

from lockstep.errors import (
    AuthenticationError,
    BodyTooLargeError,
    DeadlineError,
    InvalidInputError,
    LockstepError,
    MediaTypeError,
)
from lockstep.heartbeat import SEND_INTERVAL_S, report_progress
from lockstep.serving.batcher import Batcher, BatchPolicy
from lockstep.serving.lanes import Lanes
from lockstep.serving.model import LoadedModel
from lockstep.serving.open_requests import OpenRequests
from lockstep.serving.protocols import inference, json_instances
from lockstep.serving.protocols.inference_paths import InferencePath, Verb, find_path
from lockstep.serving.protocols.questions import Content, Reader
from lockstep.tensors import HEADER_LENGTH

MAX_BODY_BYTES: Final = 32 * 2**20
HTTP_CLIENT_GONE: Final = 499
MAX_RUN_S: Final = 60.0
"""How long one run of the model may take, in seconds. After that, the server counts as stuck and is replaced."""
HEALTH_PATH: Final = "/healthz"
_METHODS: Final = {"/predict": "POST", HEALTH_PATH: "GET"}
TIMEOUT_HEADER: Final = b"x-server-timeout"
"""The header with the number of seconds that the client waits, of Google's APIs. What it stops waiting for is not
computed."""


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
        model: the model, warmed up.
        options: the options of the interface.
    """

    def __init__(self, model: LoadedModel, *, options: AppOptions) -> None:
        self._model = model
        self._options = options
        self._authorization = f"Bearer {options.token}".encode()
        self._batcher = Batcher(model.predict, policy=options.policy)
        self._lanes = Lanes()
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
        async with self._batcher, self._lanes:
            if self._options.on_ready is not None:
                self._options.on_ready()
            beats = asyncio.create_task(_send_heartbeats(self._batcher, self._requests))
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
            return 200, await self._predict(self._reader(path, headers), headers, receive)
        except LockstepError as error:
            wait = error.retry_after_s
            retry = () if wait is None else ((b"retry-after", b"%d" % math.ceil(wait)),)
            return error.http_status, _error(str(error), *retry)
        except _ClientGoneError:
            return HTTP_CLIENT_GONE, _error("the client has gone")

    def _describe(self, path: InferencePath, headers: Mapping[bytes, bytes]) -> Content:
        if path.verb is not Verb.MODEL:
            return inference.describe_server(path)
        self._check_token(headers)
        return inference.describe_model(path, inputs=self._model.inputs, outputs=self._model.outputs)

    def _reader(self, path: InferencePath | None, headers: Mapping[bytes, bytes]) -> Reader:
        model = self._model
        if path is None:
            return partial(json_instances.read_question, inputs=model.inputs, output_names=model.output_names)
        return partial(
            inference.read_question,
            header_length=headers.get(HEADER_LENGTH.encode()),
            path=path,
            inputs=model.inputs,
            output_names=model.output_names,
        )

    async def _predict(self, read: Reader, headers: Mapping[bytes, bytes], receive: Receive) -> Content:
        self._check_token(headers)
        timeout_s = read_timeout(headers.get(TIMEOUT_HEADER))
        encoding = headers.get(b"content-encoding", b"identity")
        if encoding != b"identity":
            raise MediaTypeError("Content-Encoding", received=encoding.decode("latin-1"), allowed="identity")
        with self._requests.counting():
            body = await _read_body(receive, self._options.max_body_bytes)
            with self._lanes.holding(len(body)):
                return await _unless_gone(receive, self._answer(body, read), timeout_s=timeout_s)

    def _check_token(self, headers: Mapping[bytes, bytes]) -> None:
        if not hmac.compare_digest(headers.get(b"authorization", b""), self._authorization):
            raise AuthenticationError(
                "the request is not authorised",
                allowed="the header Authorization: Bearer TOKEN with this server's token",
            )

    async def _answer(self, body: bytes, read: Reader) -> Content:
        question = await self._lanes.run(partial(read, body), size_bytes=len(body))
        outputs = await self._batcher.submit(question.arrays)
        return await self._lanes.run(partial(question.write, outputs), size_bytes=question.size_of(outputs))


def read_timeout(header: bytes | None) -> float | None:
    """Reads the header ``X-Server-Timeout``.

    Returns:
        The number of seconds that the client waits; None if it does not say.

    Raises:
        InvalidInputError: the header is not a positive number.
    """
    if header is None:
        return None
    with suppress(ValueError):
        timeout_s = float(header)
        if 0 < timeout_s < float("inf"):
            return timeout_s
    raise InvalidInputError("X-Server-Timeout", received=header.decode("latin-1"), allowed="a number of seconds")


def _error(message: str, *headers: tuple[bytes, bytes]) -> Content:
    return Content(body=orjson.dumps({"error": message}), headers=((b"content-type", b"application/json"), *headers))


async def _send_heartbeats(batcher: Batcher, requests: OpenRequests) -> None:
    """Reports that requests are answered, and how many. Stays silent while a run of the model takes too long."""
    while True:
        if batcher.run_s < MAX_RUN_S:
            report_progress(
                requests=batcher.num_requests,
                waiting=batcher.num_waiting,
                open=requests.num_open,
                openSeconds=requests.open_s,
                busySeconds=requests.busy_s,
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


async def _unless_gone(
    receive: Receive, answer: Coroutine[object, object, Content], *, timeout_s: float | None
) -> Content:
    """Returns the answer. Cancels its computation if the client disconnects first, or does not wait any longer.

    Raises:
        _ClientGoneError: the client has disconnected.
        DeadlineError: the client's time is over.
    """
    task = asyncio.ensure_future(answer)
    gone = asyncio.ensure_future(_hang_up(receive))
    try:
        await asyncio.wait((task, gone), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if gone.done():
            raise _ClientGoneError
        raise DeadlineError(f"no prediction within {timeout_s:g} s (X-Server-Timeout)", action="try again later")
    finally:
        task.cancel()
        gone.cancel()


async def _hang_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
