"""``projects.predict`` of the contract, which is forwarded to the version's prediction server."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final

import aiohttp
from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool

from lockstep.errors import UnavailableError
from lockstep.jobs.security.access import Scope
from lockstep.service.api.access import requires_scope
from lockstep.service.api.forms import PredictionsForm
from lockstep.service.api.prediction.forwarding import NotReceivedError, ServerRequest, send_to_server
from lockstep.service.api.requests import MAX_INSTANCES_BYTES, Context, Name, Project, check_media_type, read_body
from lockstep.service.api.routes import make_router
from lockstep.service.context import ServiceContext
from lockstep.service.prediction.routing import NoServerReadyError
from lockstep.tensors import BINARY_TYPE, HEADER_LENGTH

TIMEOUT_HEADER: Final = "x-server-timeout"
"""The header with the number of seconds that the client waits, of Google's APIs."""
PREDICT_PATH: Final = "/predict"
"""The path at a prediction server that takes JSON instances."""
_PASSED_ON: Final = (TIMEOUT_HEADER, HEADER_LENGTH, "content-encoding")
"""The headers of a client's request that a prediction server gets."""

router = make_router()

Predictions = Annotated[Response, PredictionsForm]


@router.post("/models/{model}:predict")
@requires_scope(Scope.VIEWER)
async def predict_default(project: Project, model: Name, request: Request, context: Context) -> Predictions:
    """``projects.predict`` on a model, which its default version answers."""
    return await ask_server(request, context, project=project, model=model, version=None)


@router.post("/models/{model}/versions/{version}:predict")
@requires_scope(Scope.VIEWER)
async def predict_version(
    project: Project, model: Name, version: Name, request: Request, context: Context
) -> Predictions:
    """``projects.predict`` on a version."""
    return await ask_server(request, context, project=project, model=model, version=version)


async def ask_server(
    request: Request,
    context: ServiceContext,
    *,
    project: str,
    model: str,
    version: str | None,
    path: str = PREDICT_PATH,
    allows_binary: bool = False,
) -> Response:
    """Forwards a request to a prediction server, and returns its response. The body is not parsed.

    Args:
        request: the request.
        context: the parts of the service.
        project: the project.
        model: the model.
        version: the name of the version; None for the model's default version.
        path: the path at the prediction server.
        allows_binary: whether the body may be binary.

    Raises:
        NotFoundError: If there is no such model or version.
        MediaTypeError: If the type of the body is not allowed.
        BodyTooLargeError: If the body is too large.
        OverloadedError: If too many requests wait for a server.
        UnavailableError: If no server can be reached.
    """
    check_media_type(request.headers.get("content-type"), allows_binary=allows_binary)
    name = {"project": project, "model": model, "version": version}
    # In a thread: on the event loop, a slow database would delay all other requests.
    find = partial(context.routes.find, **name)
    read = partial(read_body, request, max_bytes=MAX_INSTANCES_BYTES, allows_binary=allows_binary)
    try:
        if context.routes.find_again(**name) is None:
            await run_in_threadpool(find)
        body = await read()
        # If the body took long, a server may have been ended meanwhile.
        servers = context.routes.find_again(**name) or await run_in_threadpool(find)
    except NoServerReadyError as error:
        async with context.waking.hold(error, size_bytes=_max_bytes(request)) as held:
            body = await read()
            servers = await held.wait(request.receive)
    session: aiohttp.ClientSession = request.app.state.prediction_servers
    headers = {key: request.headers[key] for key in _PASSED_ON if key in request.headers}
    asked = ServerRequest(method=request.method, path=path, body=body, headers=headers)
    for server in servers:
        context.routes.begin(server)
        try:
            answer = await send_to_server(session, server, asked, model=model)
        except NotReceivedError:
            continue
        finally:
            context.routes.end(server)
        kind = BINARY_TYPE if HEADER_LENGTH in answer.headers else "application/json"
        return Response(answer.content, answer.status, answer.headers, media_type=kind)
    raise UnavailableError(
        f"no prediction server of model {model} can be reached", action="try again; the service replaces it"
    )


def _max_bytes(request: Request) -> int:
    """Returns the largest size that a request's body may have, before it is read."""
    if request.method == "GET":
        return 0
    length = request.headers.get("content-length", "")
    return min(int(length), MAX_INSTANCES_BYTES) if length.isdecimal() else MAX_INSTANCES_BYTES
