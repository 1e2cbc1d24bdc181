"""``projects.predict`` of the contract, which is forwarded to the version's prediction server."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Annotated, Final, final

import aiohttp
from fastapi import Request, Response
from starlette.concurrency import run_in_threadpool

from lockstep.errors import NotFoundError
from lockstep.jobs.security.access import Principal, Scope
from lockstep.service.api.access import principal_of, requires_scope
from lockstep.service.api.forms import PredictionsForm
from lockstep.service.api.prediction.forwarding import Answer, NotReceivedError, ServerRequest, send_to_server
from lockstep.service.api.requests import MAX_INSTANCES_BYTES, Context, Name, Project, check_media_type, read_body
from lockstep.service.api.routes import called_directly, make_router
from lockstep.service.context import ServiceContext
from lockstep.service.prediction.metrics import Observation, VersionName
from lockstep.service.prediction.routing import NoServerReadyError, Route, ServerAddress
from lockstep.service.store import VersionRecord
from lockstep.serving.deadlines import TIMEOUT_HEADER, deadline_passed, read_timeout
from lockstep.tensors import BINARY_TYPE, HEADER_LENGTH

PREDICT_PATH: Final = "/predict"
"""The path at a prediction server that takes JSON instances."""
_PASSED_ON: Final = (HEADER_LENGTH, "content-encoding")
"""The headers of a client's request that a prediction server gets, beside the time that is left."""
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
        UnavailableError: If no server gets ready in time, or one ends before it has answered.
        InvalidInputError: If ``X-Server-Timeout`` is not a number of seconds.
        DeadlineError: If there is no response within ``X-Server-Timeout``.
    """
    check_media_type(request.headers.get("content-type"), allows_binary=allows_binary)
    arrived_s = request.state.arrived_s
    with context.prediction_metrics.observe(project=project, model=model, since_s=arrived_s) as seen:
        timeout_s = read_timeout(request.headers.get(TIMEOUT_HEADER))
        asking = _Asking(
            request=request,
            context=context,
            project=project,
            model=model,
            version=version,
            path=path,
            allows_binary=allows_binary,
            deadline_s=None if timeout_s is None else arrived_s + timeout_s,
            seen=seen,
        )
        _take_token(principal_of(request), project=project, context=context)
        answered = await _ask(asking) if timeout_s is None else await _ask_within(timeout_s, asking)
        answer = answered.answer
        seen.status = answer.status
    logging = context.request_logs.sample(answered.server.version_uid) if path == PREDICT_PATH else None
    if logging is not None:
        context.request_logs.add(
            logging,
            name=VersionName(project=project, model=model, version=answered.version),
            status=answer.status,
            latency_s=seen.latency_s,
            request=answered.body,
            response=answer.content,
        )
    kind = BINARY_TYPE if HEADER_LENGTH in answer.headers else "application/json"
    headers = {**answer.headers, VERSION_HEADER: answered.version}
    return Response(answer.content, answer.status, headers, media_type=kind)


@final
@dataclass(kw_only=True)
class _Asking:
    """A request that is to be forwarded.

    Attributes:
        request: the request.
        context: the parts of the service.
        project: the project.
        model: the name of the model.
        version: the name of the version; None for one that has traffic.
        path: the path at the prediction server.
        allows_binary: whether the body may be binary.
        deadline_s: when the client stops waiting, by ``time.perf_counter``; None if it does not say.
        seen: what is recorded of the request.
        body: the body, once it was read.
    """

    request: Request
    context: ServiceContext
    project: str
    model: str
    version: str | None
    path: str
    allows_binary: bool
    deadline_s: float | None
    seen: Observation
    body: bytes | None = None

    async def find(self, *, kept: str | None = None) -> Route:
        """Chooses the version and its servers; see `Routes.route`."""
        route = self.context.routes.route
        return await route(project=self.project, model=self.model, version=self.version, kept=kept)

    async def read_body(self) -> bytes:
        """Returns the body, which is read once."""
        if self.body is None:
            self.body = await read_body(self.request, max_bytes=MAX_INSTANCES_BYTES, allows_binary=self.allows_binary)
        return self.body

    def get_version(self, name: str) -> VersionRecord:
        """Returns the record of a version of the model. Blocks."""
        return self.context.models.get_version(project=self.project, model=self.model, name=name)

    def with_body(self, body: bytes) -> ServerRequest:
        """Returns the request to a prediction server, which gets the time that is left."""
        given = self.request.headers
        headers = {key: given[key] for key in _PASSED_ON if key in given}
        if self.deadline_s is not None:
            headers[TIMEOUT_HEADER] = f"{max(0.001, self.deadline_s - time.perf_counter()):.3f}"
        return ServerRequest(method=self.request.method, path=self.path, body=body, headers=headers)


@final
@dataclass(frozen=True, kw_only=True)
class _Answered:
    """A response, and where it comes from.

    Attributes:
        answer: the response.
        body: the body of the request.
        version: the name of the version.
        server: the server.
    """

    answer: Answer
    body: bytes
    version: str
    server: ServerAddress


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


async def _ask_within(timeout_s: float, asking: _Asking) -> _Answered:
    """Forwards a request whose client waits for a limited time.

    Raises:
        DeadlineError: If there is no response by then.
    """
    assert asking.deadline_s is not None, "it was computed from the timeout"
    timer = asyncio.timeout(asking.deadline_s - time.perf_counter())
    try:
        async with timer:
            return await _ask(asking)
    except TimeoutError:
        if timer.expired():
            raise deadline_passed(timeout_s) from None
        raise


async def _ask(asking: _Asking) -> _Answered:
    """Forwards a request to a server that is ready. Where there is none that can be reached, the request is held."""
    try:
        route = await asking.find()
        body = await asking.read_body()
        # If the body took long, the traffic may have moved, and a server may have been ended meanwhile.
        route = await asking.find(kept=route.version)
        return await _send(asking, body, route)
    except NoServerReadyError as error:
        asking.seen.version = error.version.name
        return await _ask_held(asking, error)


async def _ask_held(asking: _Asking, error: NoServerReadyError) -> _Answered:
    name = error.version.name
    async with asking.context.waking.hold(error, size_bytes=_max_bytes(asking.request)) as held:
        body = await asking.read_body()
        while True:
            try:
                route = Route(version=name, servers=await held.wait(asking.request.receive))
            except (NotFoundError, NoServerReadyError):
                # The traffic may have left the version before it was deleted.
                route = await asking.find(kept=name)
            try:
                return await _send(asking, body, route)
            except NoServerReadyError:  # it has just ended, which the engine has not reported yet
                await held.pause()


async def _send(asking: _Asking, body: bytes, route: Route) -> _Answered:
    """Sends a request to the first server that receives it.

    Raises:
        NoServerReadyError: If no server can be reached.
        UnavailableError: If a server ends before it has answered.
    """
    session: aiohttp.ClientSession = asking.request.app.state.prediction_servers
    routes = asking.context.routes
    asking.seen.version = route.version
    for server in route.servers:
        routes.begin(server)
        try:
            answer = await send_to_server(session, server, asking.with_body(body), model=asking.model)
        except NotReceivedError:
            continue
        finally:
            routes.end(server)
        return _Answered(answer=answer, body=body, version=route.version, server=server)
    raise NoServerReadyError(await run_in_threadpool(asking.get_version, route.version))


def _max_bytes(request: Request) -> int:
    """Returns the largest size that a request's body may have, before it is read."""
    if request.method == "GET":
        return 0
    length = request.headers.get("content-length", "")
    return min(int(length), MAX_INSTANCES_BYTES) if length.isdecimal() else MAX_INSTANCES_BYTES
