"""The prediction server's HTTP interface: ``POST /predict`` and ``GET /healthz``."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, final

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import Receive

from lockstep.errors import AuthenticationError, BodyTooLargeError, LockstepError
from lockstep.heartbeat import SEND_INTERVAL_S, report_progress
from lockstep.serving.batcher import Batcher, BatchPolicy
from lockstep.serving.instances import Arrays, InputSpec, read_instances, read_request, write_response
from lockstep.serving.lanes import Lanes
from lockstep.serving.model import LoadedModel
from lockstep.serving.open_requests import OpenRequests

MAX_BODY_BYTES: Final = 32 * 2**20
BYTES_OF_A_NUMBER: Final = 10
"""The approximate size of one number in a JSON response."""
HTTP_CLIENT_GONE: Final = 499
MAX_RUN_S: Final = 60.0
"""How long one run of the model may take, in seconds. After that, the server counts as stuck and is replaced."""


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


def make_app(model: LoadedModel, *, options: AppOptions) -> FastAPI:
    """Creates the ASGI application of one model.

    ``POST /predict`` takes ``{"instances": [...]}`` with the bearer token and answers ``{"predictions": [...]}``, or
    ``{"error": "..."}`` with the error's HTTP status. ``GET /healthz`` needs no token.

    Args:
        model: the model, warmed up.
        options: the options of the interface.
    """
    batcher = Batcher(model.predict, policy=options.policy)
    lanes = Lanes()
    requests = OpenRequests()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        async with batcher, lanes:
            if options.on_ready is not None:
                options.on_ready()
            beats = asyncio.create_task(_send_heartbeats(batcher, requests))
            yield
            beats.cancel()

    app = FastAPI(title="Lockstep prediction server", lifespan=lifespan, openapi_url=None)

    @app.post("/predict")
    async def predict(request: Request) -> Response:
        check_token(request.headers.get("authorization"), token=options.token)
        with requests.counting():
            return await answer_request(request)

    async def answer_request(request: Request) -> Response:
        body = await _read_body(request, options.max_body_bytes)

        async def answer() -> bytes:
            arrays = await lanes.run(partial(_read, body, model.inputs), size_bytes=len(body))
            outputs = await batcher.submit(arrays)
            num_values = sum(array.size for array in outputs.values())
            write = partial(write_response, outputs, names=model.output_names)
            return await lanes.run(write, size_bytes=num_values * BYTES_OF_A_NUMBER)

        with lanes.holding(len(body)):
            content = await _unless_gone(request.receive, answer())
        if content is None:
            return JSONResponse({"error": "the client has gone"}, HTTP_CLIENT_GONE)
        return Response(content, media_type="application/json")

    @app.get("/healthz")
    async def healthz() -> JSONResponse:
        return JSONResponse({"status": "ok"})

    @app.exception_handler(LockstepError)
    async def answer_error(_: Request, error: LockstepError) -> JSONResponse:
        return JSONResponse({"error": str(error)}, error.http_status)

    @app.exception_handler(HTTPException)
    async def answer_http_error(_: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"error": error.detail}, error.status_code)

    return app


def check_token(header: str | None, *, token: str) -> None:
    """Checks an ``Authorization`` header in constant time, so that the time does not reveal how much of it was right.

    Raises:
        AuthenticationError: the header does not contain the token.
    """
    given = (header or "").encode()
    if not hmac.compare_digest(given, f"Bearer {token}".encode()):
        raise AuthenticationError(
            "the request is not authorised", allowed="the header Authorization: Bearer TOKEN with this server's token"
        )


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


def _read(body: bytes, specs: Sequence[InputSpec]) -> Arrays:
    return read_instances(read_request(body), specs=specs)


async def _read_body(request: Request, max_bytes: int) -> bytes:
    chunks: list[bytes] = []
    num_bytes = 0
    async for chunk in request.stream():
        num_bytes += len(chunk)
        if num_bytes > max_bytes:
            raise BodyTooLargeError(
                "the request is too large", allowed=f"{max_bytes} bytes", action="send fewer instances at a time"
            )
        chunks.append(chunk)
    return b"".join(chunks)


async def _unless_gone(receive: Receive, answer: Coroutine[object, object, bytes]) -> bytes | None:
    """Returns the answer; None if the client disconnects first, which cancels the computation of the answer."""
    task = asyncio.ensure_future(answer)
    gone = asyncio.ensure_future(_hang_up(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        return await task if task.done() else None
    finally:
        for each in (task, gone):
            each.cancel()
        with suppress(asyncio.CancelledError):
            await gone


async def _hang_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
