"""Pages that wait for a prediction server. They wait in the event loop, so that they take no thread of the console."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, final

import htpy as h
from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from lockstep.errors import LockstepError, UnavailableError
from lockstep.jobs.security.access import Principal, check_access
from lockstep.service.api.access import required_scope
from lockstep.service.api.prediction.forwarding import NotReceivedError, ServerRequest, send_to_server
from lockstep.service.api.prediction.inference import server_path
from lockstep.service.api.prediction.predictions import VERSION_HEADER, ask_server, predict_default
from lockstep.service.console.forms import Form
from lockstep.service.console.signing_in import Session
from lockstep.service.context import ServiceContext
from lockstep.service.prediction.routing import ServerAddress
from lockstep.serving.deadlines import TIMEOUT_HEADER

HTTP_OK: Final = 200
TIMEOUT_S: Final = 15.0
"""How long a reader waits for predictions. htmx gives up a little later."""
MAX_SIGNATURE_BYTES: Final = 2**20


@final
@dataclass(frozen=True, kw_only=True)
class Asking:
    """A request for a page that waits for a prediction server.

    Attributes:
        request: the request.
        session: the session of its sender.
        context: the parts of the service.
        form: the fields and files that were sent; empty for a GET.
        api: the application of the REST interface, which has the connections to prediction servers.
    """

    request: Request
    session: Session
    context: ServiceContext
    form: Form
    api: FastAPI

    @property
    def project(self) -> str:
        """The project in the path."""
        return self.request.path_params["project"]

    @property
    def model(self) -> str:
        """The model in the path."""
        return self.request.path_params["model"]


Ask = Callable[[Asking], Awaitable[Callable[[], h.Node | Response]]]
"""Waits for a server, and returns what renders the page, which may block."""


@final
@dataclass(frozen=True, kw_only=True)
class Predicted:
    """The response to a request for predictions.

    Attributes:
        status: the HTTP status that a client of the REST interface would get.
        version: the version that has answered; "" if none has.
        content: the body; empty if the service refused the request.
        error: why the service refused the request; None if a server has answered.
        latency_s: how long it took, in seconds.
    """

    status: int
    version: str
    content: bytes
    error: str | None
    latency_s: float


@final
class _Sent:
    """The messages of a request that was read already: its body, and then whether its sender is still there.

    Args:
        request: the request of the browser, whose own body was read.
        body: the body to send on.
    """

    def __init__(self, request: Request, body: bytes) -> None:
        self._request = request
        self._body: bytes | None = body

    async def __call__(self) -> Message:
        """Returns the next message."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        return await self._request.receive()


async def ask_for_predictions(asking: Asking, *, version: str | None, body: bytes) -> Predicted:
    """Requests predictions as ``:predict`` does, with the rates and the rights of the reader's key.

    Args:
        asking: the request of the browser.
        version: the version; None for one that has traffic.
        body: the JSON of the request for predictions.

    Raises:
        NotFoundError: If the reader's key is not for this project.
        PermissionDeniedError: If it does not allow requests for predictions.
    """
    _check(asking.session.principal, asking, version=version)
    began_s = time.perf_counter()
    inner = _inner(asking, body=body, began_s=began_s)
    try:
        answer = await ask_server(inner, asking.context, project=asking.project, model=asking.model, version=version)
    except LockstepError as error:
        status, found, content, said = error.http_status, "", b"", str(error)
    else:
        status, found, content, said = answer.status_code, answer.headers.get(VERSION_HEADER, ""), answer.body, None
    return Predicted(
        status=status,
        version=found,
        content=bytes(content),
        error=said,
        latency_s=time.perf_counter() - began_s,
    )


def _check(principal: Principal, asking: Asking, *, version: str | None) -> None:
    needed = required_scope(predict_default)
    assert needed is not None, "every function declares one"
    check_access(principal, needed=needed, project=asking.project, model=asking.model, version=version)


def _inner(asking: Asking, *, body: bytes, began_s: float) -> Request:
    """Returns the request for predictions that the REST interface would have got."""
    outer = asking.request.scope
    headers = [(b"content-type", b"application/json"), (TIMEOUT_HEADER.encode(), f"{TIMEOUT_S:g}".encode())]
    scope: dict[str, Any] = {
        **{name: outer[name] for name in ("type", "http_version", "scheme", "client", "server") if name in outer},
        "method": "POST",
        "path": f"/v1/projects/{asking.project}/models/{asking.model}:predict",
        "query_string": b"",
        "headers": [*headers, (b"content-length", str(len(body)).encode())],
        "app": asking.api,
        "state": {"principal": asking.session.principal, "arrived_s": began_s},
    }
    return Request(scope, _Sent(asking.request, body))


async def read_signature(asking: Asking, *, version: str | None) -> Mapping[str, Any] | None:
    """Returns the names, types and shapes of a model's inputs and outputs, from a server that is ready.

    This is no request for predictions: it is not counted, and starts no server.

    Args:
        asking: the request of the browser.
        version: the version; None for the one with the largest share of the traffic.

    Returns:
        The metadata of the Open Inference Protocol; None if no server is ready, or it has none.

    Raises:
        NotFoundError: If there is no such model or version, or the reader's key is not for it.
        PermissionDeniedError: If the key does not allow it.
    """
    _check(asking.session.principal, asking, version=version)
    found = await run_in_threadpool(_find_servers, asking, version)
    if found is None:
        return None
    name, servers = found
    path = server_path(model=asking.model, version=name, action="")
    request = ServerRequest(method="GET", path=path, body=b"", headers={TIMEOUT_HEADER: f"{TIMEOUT_S:g}"})
    for server in servers:
        with contextlib.suppress(NotReceivedError, LockstepError):
            answer = await send_to_server(asking.api.state.prediction_servers, server, request, model=asking.model)
            return _parse(answer.content) if answer.status == HTTP_OK else None
    return None


def _find_servers(asking: Asking, version: str | None) -> tuple[str, list[ServerAddress]] | None:
    """Returns the name of a version, and its servers that are ready; None if no version answers. Blocks."""
    models = asking.context.models
    try:
        name = version or models.get_traffic(project=asking.project, model=asking.model)[0].version
    except UnavailableError:
        return None
    record = models.get_version(project=asking.project, model=asking.model, name=name)
    return name, asking.context.routes.ready_servers(record)


def _parse(content: bytes) -> Mapping[str, Any] | None:
    """Parses the metadata of a model, which a server in a container may answer with anything."""
    if len(content) > MAX_SIGNATURE_BYTES:
        return None
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None
