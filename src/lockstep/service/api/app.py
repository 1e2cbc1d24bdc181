"""The application: routes, the gate in front of them, and errors in Google's form."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import Final

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute

from lockstep.errors import InvalidInputError, LockstepError, UnavailableError
from lockstep.service.api import datasets, doctor, system, webhooks
from lockstep.service.api.access import guard
from lockstep.service.api.answers import answer, error_content
from lockstep.service.api.billing import costs
from lockstep.service.api.control import artifacts, job_config, jobs, nodes, profiles, queue, shell_route, trials
from lockstep.service.api.gate import Gate
from lockstep.service.api.prediction import inference, models, operations, predictions, watching
from lockstep.service.api.prediction.forwarding import connect_to_servers
from lockstep.service.api.refusals import CONTRACT, make_refusing_router
from lockstep.service.api.routes import ERRORS
from lockstep.service.api.security import keys, secrets
from lockstep.service.api.telemetry import logs, metrics, prometheus, scalars
from lockstep.service.api.vertex import endpoints as vertex_endpoints
from lockstep.service.api.vertex import models as vertex_models
from lockstep.service.api.vertex import operations as vertex_operations
from lockstep.service.api.vertex import predictions as vertex_predictions
from lockstep.service.api.vertex.refusals import VERTEX
from lockstep.service.context import ServiceContext
from lockstep.service.problems import Part
from lockstep.service.security.keys import Authenticator
from lockstep.service.store import DATABASE_FAULTS, describe_fault

RPC_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    413: "INVALID_ARGUMENT",
    415: "INVALID_ARGUMENT",
    503: "UNAVAILABLE",
}


IN_PROJECT: Final = "/v1/projects/{project}"
IN_LOCATION: Final = f"{IN_PROJECT}/locations/{{location}}"
PREDICTION_ROUTERS: Final[Mapping[str, APIRouter]] = {
    IN_PROJECT: predictions.router,
    IN_LOCATION: vertex_predictions.router,
    f"{IN_PROJECT}/v2": inference.router,
}
"""The routers of requests for predictions, by their prefixes."""


def create_app(context: ServiceContext) -> FastAPI:
    """Returns the ASGI application of a service.

    Args:
        context: the parts of the service.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with connect_to_servers() as session:
            app.state.prediction_servers = session
            yield

    app = FastAPI(
        title="Lockstep",
        version="v1",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[Depends(guard)],
        responses=dict(ERRORS),
    )
    app.router.routes.extend(_make_routes())
    app.state.context = context
    authenticator = Authenticator(home_token=context.token, keys=context.keys)
    app.add_middleware(Gate, authenticator=authenticator, answer=answer)

    @app.exception_handler(LockstepError)
    async def on_lockstep_error(request: Request, error: LockstepError) -> JSONResponse:
        return answer(error, path=request.scope["path"])

    async def on_database_fault(request: Request, error: Exception) -> JSONResponse:
        fault = describe_fault(error)
        context.problems.note(Part.DATABASE, fault)
        unavailable = UnavailableError(
            f"the database cannot be used: {fault}", action="try again; see `lockstep status`"
        )
        return answer(unavailable, path=request.scope["path"])

    @app.exception_handler(RequestValidationError)
    async def on_validation_error(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path"))
        invalid = InvalidInputError(f"{where or 'request'}: {first['msg']}", received=first.get("input"))
        return answer(invalid, path=request.scope["path"])

    @app.exception_handler(HTTPException)
    async def on_http_exception(request: Request, error: HTTPException) -> JSONResponse:
        status = RPC_STATUS.get(error.status_code, "UNKNOWN")
        content = error_content(error.status_code, status, str(error.detail), path=request.scope["path"])
        return JSONResponse(content, error.status_code)

    for kind in DATABASE_FAULTS:
        app.exception_handler(kind)(on_database_fault)

    return app


@cache
def _make_routes() -> Sequence[BaseRoute]:
    """Returns the routes, which all applications of a process share: FastAPI takes long to prepare them."""
    router = APIRouter(dependencies=[Depends(guard)], responses=dict(ERRORS))
    # Each request is compared with the routes in this order: those for predictions come first, to be found fast, and
    # refused methods such as ":getIamPolicy" before the routes that would match them as a part of a name.
    in_project, in_location = IN_PROJECT, IN_LOCATION
    for prefix, of_predictions in PREDICTION_ROUTERS.items():
        router.include_router(of_predictions, prefix=prefix)
    router.include_router(make_refusing_router((*CONTRACT, *VERTEX)), prefix=in_project)
    of_jobs = (jobs, job_config, trials, webhooks, artifacts, profiles, shell_route, logs, metrics, scalars)
    for module in (*of_jobs, costs, models, watching, operations, secrets, datasets):
        router.include_router(module.router, prefix=in_project)
    for module in (vertex_models, vertex_endpoints, vertex_operations):
        router.include_router(module.router, prefix=in_location)
    # Where the REST transport of Vertex AI's Python client asks for operations.
    router.include_router(vertex_operations.router, prefix=f"/ui{in_location.removeprefix('/v1')}")
    for module in (system, doctor, keys, nodes, queue, prometheus):
        router.include_router(module.router)
    router.include_router(costs.all_projects_router)
    router.include_router(webhooks.operators_router)
    return router.routes
