"""The application: routes, the token in front of them, and errors in Google's form."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from lockstep.errors import AuthenticationError, InvalidInputError, LockstepError
from lockstep.service.api import costs, jobs, models, predictions, system
from lockstep.service.context import ServiceContext

RPC_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    413: "INVALID_ARGUMENT",
    503: "UNAVAILABLE",
}


def error_document(code: int, status: str, message: str) -> dict[str, Any]:
    """Returns an error in Google's form (google.rpc.Status as JSON)."""
    return {"error": {"code": code, "message": message, "status": status}}


def _answer(error: LockstepError) -> JSONResponse:
    return JSONResponse(error_document(error.http_status, error.rpc_status, str(error)), status_code=error.http_status)


def create_app(context: ServiceContext) -> FastAPI:
    """Returns the application over a service's parts."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # One pool of connections to the prediction servers, which are on loopback, whatever proxies are named.
        async with httpx.AsyncClient(timeout=60.0, trust_env=False) as client:
            app.state.http = client
            yield

    app = FastAPI(title="Lockstep", version="v1", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.context = context

    @app.middleware("http")
    async def authenticate(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        if request.url.path != "/healthz":
            scheme, _, token = request.headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not secrets.compare_digest(token.encode(), context.token.encode()):
                return _answer(
                    AuthenticationError(
                        "the request carries no valid token",
                        action="send the content of the home's token file as 'Authorization: Bearer TOKEN'",
                    )
                )
        return await call_next(request)

    @app.exception_handler(LockstepError)
    async def on_lockstep_error(_request: Request, error: LockstepError) -> JSONResponse:
        return _answer(error)

    @app.exception_handler(RequestValidationError)
    async def on_validation_error(_request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path"))
        return _answer(InvalidInputError(f"{where or 'request'}: {first['msg']}", received=first.get("input")))

    @app.exception_handler(HTTPException)
    async def on_http_exception(_request: Request, error: HTTPException) -> JSONResponse:
        status = RPC_STATUS.get(error.status_code, "UNKNOWN")
        return JSONResponse(error_document(error.status_code, status, str(error.detail)), error.status_code)

    app.include_router(system.router)
    for module in (predictions, jobs, costs, models):  # ":predict" before the routes that would take it for a name
        app.include_router(module.router, prefix="/v1/projects/{project}")
    return app
