"""``projects.predict`` of the contract, which is forwarded to the version's prediction server."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final

import aiohttp
from fastapi import Request, Response

from lockstep.errors import NotFoundError, UnavailableError
from lockstep.jobs.security.access import Scope
from lockstep.service.api.access import requires_scope
from lockstep.service.api.forms import PredictionsForm
from lockstep.service.api.prediction.forwarding import NotReceivedError, send_to_server
from lockstep.service.api.requests import MAX_INSTANCES_BYTES, Context, Name, Project, check_media_type, read_body
from lockstep.service.api.routes import make_router
from lockstep.service.prediction.routing import NoServerReadyError, Route

TIMEOUT_HEADER: Final = "x-server-timeout"
"""The header with the number of seconds that the client waits, of Google's APIs."""
VERSION_HEADER: Final = "x-lockstep-version"
"""The header with the name of the version that has answered."""

router = make_router()

Predictions = Annotated[Response, PredictionsForm]


@router.post("/models/{model}:predict")
@requires_scope(Scope.VIEWER)
async def predict_default(project: Project, model: Name, request: Request, context: Context) -> Predictions:
    """``projects.predict`` on a model, which a version answers that has traffic."""
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
    find = partial(context.routes.route, project=project, model=model, version=version)
    try:
        route = await find()
        body = await read_body(request, max_bytes=MAX_INSTANCES_BYTES)
        # If the body took long, the traffic may have moved, and a server may have been ended meanwhile.
        route = await find(kept=route.version)
    except NoServerReadyError as error:
        async with context.waking.hold(error, size_bytes=_max_bytes(request)) as held:
            body = await read_body(request, max_bytes=MAX_INSTANCES_BYTES)
            try:
                route = Route(version=error.version.name, servers=await held.wait(request.receive))
            except (NotFoundError, NoServerReadyError):
                # The traffic may have left the version before it was deleted.
                route = await find(kept=error.version.name)
    session: aiohttp.ClientSession = request.app.state.prediction_servers
    passed_on = {TIMEOUT_HEADER: request.headers[TIMEOUT_HEADER]} if TIMEOUT_HEADER in request.headers else {}
    for server in route.servers:
        context.routes.begin(server)
        try:
            answer = await send_to_server(session, server, body, model=model, headers=passed_on)
        except NotReceivedError:
            continue
        finally:
            context.routes.end(server)
        headers = {**answer.headers, VERSION_HEADER: route.version}
        return Response(answer.content, answer.status, headers, media_type="application/json")
    raise UnavailableError(
        f"no prediction server of version {route.version} of model {model} can be reached",
        action="try again; the service replaces it",
    )


def _max_bytes(request: Request) -> int:
    """Returns the largest size that a request's body may have, before it is read."""
    length = request.headers.get("content-length", "")
    return min(int(length), MAX_INSTANCES_BYTES) if length.isdecimal() else MAX_INSTANCES_BYTES
