"""``projects.predict`` of the contract, which is forwarded to the version's prediction server."""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import Annotated, Final

import httpx
from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool

from lockstep.errors import ModelError, UnavailableError
from lockstep.jobs.security.access import Scope
from lockstep.service.api.access import requires_scope
from lockstep.service.api.forms import PredictionsForm
from lockstep.service.api.requests import MAX_INSTANCES_BYTES, Context, Name, Project, check_media_type, read_body
from lockstep.service.api.routes import make_router
from lockstep.service.prediction.routing import MAX_AGE_S, NoServerReadyError, Routes, ServerAddress

MAX_ANSWER_BYTES: Final = 512 * 2**20
_NOT_RECEIVED: Final = (httpx.ConnectError, httpx.ConnectTimeout)
"""Errors after which another server may be sent the request."""

router = make_router()

Predictions = Annotated[Response, PredictionsForm]


@router.post("/models/{model}:predict")
@requires_scope(Scope.VIEWER)
async def predict_default(project: Project, model: Name, request: Request, context: Context) -> Predictions:
    """``projects.predict`` on a model, which its default version answers."""
    return await _predict(project, model, None, request, context)


@router.post("/models/{model}/versions/{version}:predict")
@requires_scope(Scope.VIEWER)
async def predict_version(
    project: Project, model: Name, version: Name, request: Request, context: Context
) -> Predictions:
    """``projects.predict`` on a version."""
    return await _predict(project, model, version, request, context)


async def _predict(project: str, model: str, version: str | None, request: Request, context: Context) -> Response:
    check_media_type(request.headers.get("content-type"))
    # In a thread: on the event loop, a slow database would delay all other requests.
    find = partial(context.routes.find, project=project, model=model, version=version)
    try:
        servers, found = await run_in_threadpool(find), time.monotonic()
        body = await read_body(request, max_bytes=MAX_INSTANCES_BYTES)
        if time.monotonic() - found > MAX_AGE_S:  # meanwhile, a server may have been ended
            servers = await run_in_threadpool(find)
    except NoServerReadyError as error:
        async with context.waking.hold(error, size_bytes=_max_bytes(request)) as held:
            body = await read_body(request, max_bytes=MAX_INSTANCES_BYTES)
            servers = await held.wait(request.receive)
    client: httpx.AsyncClient = request.app.state.http
    for server in servers:
        with contextlib.suppress(*_NOT_RECEIVED):  # it has just ended, or its node has
            return await _send(client, server, body, model=model, routes=context.routes)
    raise UnavailableError(
        f"no prediction server of model {model} can be reached", action="try again; the service replaces it"
    )


def _max_bytes(request: Request) -> int:
    """Returns the largest size that a request's body may have, before it is read."""
    length = request.headers.get("content-length", "")
    return min(int(length), MAX_INSTANCES_BYTES) if length.isdecimal() else MAX_INSTANCES_BYTES


async def _send(
    client: httpx.AsyncClient, server: ServerAddress, body: bytes, *, model: str, routes: Routes
) -> Response:
    routes.begin(server)
    try:
        headers = {"authorization": f"Bearer {server.token}", "content-type": "application/json"}
        async with client.stream("POST", f"{server.url}/predict", content=body, headers=headers) as answer:
            content = await _read(answer, model=model)
    except _NOT_RECEIVED:
        raise
    except httpx.HTTPError as error:
        raise UnavailableError(
            f"a prediction server of model {model} ended or did not answer: {type(error).__name__}",
            action="try again; the service replaces it",
        ) from error
    finally:
        routes.end(server)
    return Response(content, status_code=answer.status_code, media_type="application/json")


async def _read(answer: httpx.Response, *, model: str) -> bytes:
    """Reads a response up to a limit, since code of a package in the prediction server may make it arbitrarily long."""
    parts: list[bytes] = []
    num_bytes = 0
    async for part in answer.aiter_bytes():
        parts.append(part)
        num_bytes += len(part)  # the decompressed size
        if num_bytes > MAX_ANSWER_BYTES:
            raise ModelError(
                f"the answer of model {model} is too long",
                allowed=f"{MAX_ANSWER_BYTES} bytes",
                action="send fewer instances at a time",
            )
    return b"".join(parts)
