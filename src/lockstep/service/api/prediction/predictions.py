"""``projects.predict`` of the contract, which is forwarded to the version's prediction server."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final

import aiohttp
from fastapi import Request, Response

from lockstep.errors import NotFoundError, UnavailableError
from lockstep.jobs.security.access import Principal, Scope
from lockstep.service.api.access import principal_of, requires_scope
from lockstep.service.api.forms import PredictionsForm
from lockstep.service.api.prediction.forwarding import Answer, NotReceivedError, send_to_server
from lockstep.service.api.requests import MAX_INSTANCES_BYTES, Context, Name, Project, check_media_type, read_body
from lockstep.service.api.routes import make_router
from lockstep.service.prediction.metrics import Observation, VersionName
from lockstep.service.prediction.routing import NoServerReadyError, Route, ServerAddress

TIMEOUT_HEADER: Final = "x-server-timeout"
"""The header with the number of seconds that the client waits, of Google's APIs."""
VERSION_HEADER: Final = "x-lockstep-version"
"""The header with the name of the version that has answered."""

router = make_router()

Predictions = Annotated[Response, PredictionsForm]


@router.post("/models/{model}:predict")
@requires_scope(Scope.CALLER)
async def predict_default(project: Project, model: Name, request: Request, context: Context) -> Predictions:
    """``projects.predict`` on a model, which a version answers that has traffic."""
    return await _predict(project, model, None, request, context)


@router.post("/models/{model}/versions/{version}:predict")
@requires_scope(Scope.CALLER)
async def predict_version(
    project: Project, model: Name, version: Name, request: Request, context: Context
) -> Predictions:
    """``projects.predict`` on a version."""
    return await _predict(project, model, version, request, context)


async def _predict(project: str, model: str, version: str | None, request: Request, context: Context) -> Response:
    with context.prediction_metrics.observe(project=project, model=model, since_s=request.state.arrived_s) as seen:
        _take_token(principal_of(request), project=project, context=context)
        body, route = await _find(project, model, version, request, context, seen=seen)
        answer, server = await _send(body, route, model=model, request=request, context=context, seen=seen)
        seen.status = answer.status
    asked = context.request_logs.sample(server.version_uid)
    if asked is not None:
        context.request_logs.add(
            asked,
            name=VersionName(project=project, model=model, version=route.version),
            status=answer.status,
            latency_s=seen.latency_s,
            request=body,
            response=answer.content,
        )
    headers = {**answer.headers, VERSION_HEADER: route.version}
    return Response(answer.content, answer.status, headers, media_type="application/json")


def _take_token(sender: Principal, *, project: str, context: Context) -> None:
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
    project: str, model: str, version: str | None, request: Request, context: Context, *, seen: Observation
) -> tuple[bytes, Route]:
    """Returns the body of a request, and the version and servers that may answer it."""
    check_media_type(request.headers.get("content-type"))
    find = partial(context.routes.route, project=project, model=model, version=version)
    try:
        route = await find()
        body = await read_body(request, max_bytes=MAX_INSTANCES_BYTES)
        # If the body took long, the traffic may have moved, and a server may have been ended meanwhile.
        return body, await find(kept=route.version)
    except NoServerReadyError as error:
        seen.version = error.version.name
        async with context.waking.hold(error, size_bytes=_max_bytes(request)) as held:
            body = await read_body(request, max_bytes=MAX_INSTANCES_BYTES)
            try:
                return body, Route(version=error.version.name, servers=await held.wait(request.receive))
            except (NotFoundError, NoServerReadyError):
                # The traffic may have left the version before it was deleted.
                return body, await find(kept=error.version.name)


async def _send(
    body: bytes,
    route: Route,
    *,
    model: str,
    request: Request,
    context: Context,
    seen: Observation,
) -> tuple[Answer, ServerAddress]:
    """Sends a request to the first server that receives it, and returns its response and the server.

    Raises:
        UnavailableError: If no server can be reached, or one ends before it has answered.
    """
    session: aiohttp.ClientSession = request.app.state.prediction_servers
    passed_on = {TIMEOUT_HEADER: request.headers[TIMEOUT_HEADER]} if TIMEOUT_HEADER in request.headers else {}
    seen.version = route.version
    for server in route.servers:
        context.routes.begin(server)
        try:
            return await send_to_server(session, server, body, model=model, headers=passed_on), server
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
    length = request.headers.get("content-length", "")
    return min(int(length), MAX_INSTANCES_BYTES) if length.isdecimal() else MAX_INSTANCES_BYTES
