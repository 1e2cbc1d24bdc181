"""``projects.predict`` of the contract, which is forwarded to the version's prediction server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Final

import aiohttp
from fastapi import Request, Response

from lockstep.errors import NotFoundError, UnavailableError
from lockstep.jobs.security.access import Principal, Scope
from lockstep.service.api.access import principal_of, requires_scope
from lockstep.service.api.forms import PredictionsForm
from lockstep.service.api.prediction.forwarding import Answer, NotReceivedError, ServerRequest, send_to_server
from lockstep.service.api.requests import MAX_INSTANCES_BYTES, Context, Name, Project, check_media_type, read_body
from lockstep.service.api.routes import called_directly, make_router
from lockstep.service.context import ServiceContext
from lockstep.service.prediction.metrics import Observation, VersionName
from lockstep.service.prediction.routing import NoServerReadyError, Route, ServerAddress
from lockstep.tensors import BINARY_TYPE, HEADER_LENGTH

TIMEOUT_HEADER: Final = "x-server-timeout"
"""The header with the number of seconds that the client waits, of Google's APIs."""
PREDICT_PATH: Final = "/predict"
"""The path at a prediction server that takes JSON instances."""
_PASSED_ON: Final = (TIMEOUT_HEADER, HEADER_LENGTH, "content-encoding")
"""The headers of a client's request that a prediction server gets."""
VERSION_HEADER: Final = "x-lockstep-version"
"""The header with the name of the version that has answered."""

router = make_router()

Predictions = Annotated[Response, PredictionsForm]


@router.post("/models/{model}:predict")
@called_directly
@requires_scope(Scope.CALLER)
async def predict_default(project: Project, model: Name, request: Request, context: Context) -> Predictions:
    """``projects.predict`` on a model, which a version answers that has traffic."""
    return await ask_server(request, context, project=project, model=model, version=None)


@router.post("/models/{model}/versions/{version}:predict")
@called_directly
@requires_scope(Scope.CALLER)
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
        version: the name of the version; None for one that has traffic.
        path: the path at the prediction server.
        allows_binary: whether the body may be binary.

    Raises:
        NotFoundError: If there is no such model or version.
        MediaTypeError: If the type of the body is not allowed.
        BodyTooLargeError: If the body is too large.
        OverloadedError: If too many requests wait for a server.
        RateLimitError: If a rate is exceeded.
        UnavailableError: If no server can be reached.
    """
    check_media_type(request.headers.get("content-type"), allows_binary=allows_binary)
    find = partial(context.routes.route, project=project, model=model, version=version)
    with context.prediction_metrics.observe(project=project, model=model, since_s=request.state.arrived_s) as seen:
        _take_token(principal_of(request), project=project, context=context)
        body, route = await _find(find, request, context, seen=seen, allows_binary=allows_binary)
        headers = {key: request.headers[key] for key in _PASSED_ON if key in request.headers}
        asked = ServerRequest(method=request.method, path=path, body=body, headers=headers)
        answer, server = await _send(asked, route, model=model, request=request, context=context, seen=seen)
        seen.status = answer.status
    logging = context.request_logs.sample(server.version_uid) if path == PREDICT_PATH else None
    if logging is not None:
        context.request_logs.add(
            logging,
            name=VersionName(project=project, model=model, version=route.version),
            status=answer.status,
            latency_s=seen.latency_s,
            request=body,
            response=answer.content,
        )
    kind = BINARY_TYPE if HEADER_LENGTH in answer.headers else "application/json"
    return Response(answer.content, answer.status, {**answer.headers, VERSION_HEADER: route.version}, media_type=kind)


def _take_token(sender: Principal, *, project: str, context: ServiceContext) -> None:
    """Counts a request against the rate of its key, and that of its project.

    Raises:
        RateLimitError: If one of them is exceeded.
    """
    if sender.requests_per_second is not None and sender.key_id is not None:
        whose = f"the key of {sender.label}"
        context.rates.take(sender.key_id, per_second=sender.requests_per_second, whose=whose)
    quota = context.settings.quotas.get(project)
    if quota is not None and quota.requests_per_second is not None:
        whose = f"the keys of project {project}"
        context.rates.take(f"project {project}", per_second=quota.requests_per_second, whose=whose)


async def _find(
    find: Callable[..., Awaitable[Route]],
    request: Request,
    context: ServiceContext,
    *,
    seen: Observation,
    allows_binary: bool,
) -> tuple[bytes, Route]:
    """Returns the body of a request, and the version and servers that may answer it."""
    read = partial(read_body, request, max_bytes=MAX_INSTANCES_BYTES, allows_binary=allows_binary)
    try:
        route = await find()
        body = await read()
        # If the body took long, the traffic may have moved, and a server may have been ended meanwhile.
        return body, await find(kept=route.version)
    except NoServerReadyError as error:
        seen.version = error.version.name
        async with context.waking.hold(error, size_bytes=_max_bytes(request)) as held:
            body = await read()
            try:
                return body, Route(version=error.version.name, servers=await held.wait(request.receive))
            except (NotFoundError, NoServerReadyError):
                # The traffic may have left the version before it was deleted.
                return body, await find(kept=error.version.name)


async def _send(
    asked: ServerRequest,
    route: Route,
    *,
    model: str,
    request: Request,
    context: ServiceContext,
    seen: Observation,
) -> tuple[Answer, ServerAddress]:
    """Sends a request to the first server that receives it, and returns its response and the server.

    Raises:
        UnavailableError: If no server can be reached, or one ends before it has answered.
    """
    session: aiohttp.ClientSession = request.app.state.prediction_servers
    seen.version = route.version
    for server in route.servers:
        context.routes.begin(server)
        try:
            return await send_to_server(session, server, asked, model=model), server
        except NotReceivedError:
            continue
        finally:
            context.routes.end(server)
    raise UnavailableError(
        f"no prediction server of version {route.version} of model {model} can be reached",
        action="try again; the service replaces it",
    )


def _max_bytes(request: Request) -> int:
    """Returns the largest size that a request's body may have, before it is read."""
    if request.method == "GET":
        return 0
    length = request.headers.get("content-length", "")
    return min(int(length), MAX_INSTANCES_BYTES) if length.isdecimal() else MAX_INSTANCES_BYTES
