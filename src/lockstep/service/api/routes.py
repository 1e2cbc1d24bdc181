"""Routes that declare their responses: the form in the endpoint's return annotation, and errors in Google's form."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from types import NoneType
from typing import Annotated, Any, Final, TypeVar, final, get_args, get_origin, get_type_hints

from fastapi import APIRouter
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from lockstep.service.api.access import guard
from lockstep.service.api.forms import ErrorForm, InferenceErrorForm
from lockstep.service.threads import in_its_pool

ERRORS: Final[Mapping[int | str, dict[str, Any]]] = {
    "4XX": {"description": "The request cannot be honoured, and why.", "model": ErrorForm},
    "5XX": {"description": "Something that the service needs does not answer, or is not there.", "model": ErrorForm},
}
"""The error responses that any route may return."""
INFERENCE_ERRORS: Final[Mapping[int | str, dict[str, Any]]] = {
    code: {**response, "model": InferenceErrorForm} for code, response in ERRORS.items()
}
"""The error responses of routes of the Open Inference Protocol."""
_DIRECT: Final = "lockstep_direct"
_NOT_NAMES: Final = {"request", "context", "return"}

Endpoint = TypeVar("Endpoint", bound=Callable[..., Coroutine[Any, Any, Response]])
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


@final
class DeclaredRoute(APIRoute):
    """A route whose schema has the form that its endpoint returns.

    The form is declared but not enforced: a response is sent as the endpoint built it, because validating every field
    takes as long as building the response. An endpoint that returns a `Response` declares the form of its content with
    ``Annotated[Response, Form]``.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        options["response_model"], form = _returned(endpoint)
        if form is not None:
            options["responses"] = {200: {"model": form}, **(options.get("responses") or {})}
        super().__init__(path, in_its_pool(endpoint), **options)

    def get_route_handler(self) -> Handler:
        """Returns what answers the requests of this route."""
        return direct_handler(self.endpoint) or super().get_route_handler()


def called_directly(endpoint: Endpoint) -> Endpoint:
    """Has an endpoint called without FastAPI's dependencies. This decorator goes below the route's path.

    For a request that is only forwarded, resolving them takes longer than all the rest of its handling. The endpoint is
    a coroutine that takes the ``request``, the ``context``, and every name in the path, which is checked against its
    annotation as FastAPI does. `guard` runs first.
    """
    setattr(endpoint, _DIRECT, True)
    return endpoint


def direct_handler(endpoint: Callable[..., Any]) -> Handler | None:
    """Returns what answers the requests of an endpoint that is called directly; None for another one."""
    return _call_directly(endpoint) if hasattr(endpoint, _DIRECT) else None


def _call_directly(endpoint: Callable[..., Coroutine[Any, Any, Response]]) -> Handler:
    hints = get_type_hints(endpoint, include_extras=True)
    names = {name: TypeAdapter[str](hint) for name, hint in hints.items() if name not in _NOT_NAMES}

    async def handle(request: Request) -> Response:
        await guard(request)
        given = {name: _check_name(request, name, kind) for name, kind in names.items()}
        return await endpoint(**given, request=request, context=request.app.state.context)

    return handle


def _check_name(request: Request, name: str, kind: TypeAdapter[str]) -> str:
    try:
        return kind.validate_python(request.path_params[name])
    except ValidationError as error:
        raise RequestValidationError([{**found, "loc": ("path", name)} for found in error.errors()]) from None


def make_router(*, responses: Mapping[int | str, dict[str, Any]] | None = None) -> APIRouter:
    """Returns a router for routes that declare their responses.

    Args:
        responses: the error responses of its routes; `ERRORS` by default.
    """
    return APIRouter(route_class=DeclaredRoute, responses=None if responses is None else dict(responses))


def _returned(endpoint: Callable[..., Any]) -> tuple[Any, Any]:
    """Returns the type by which FastAPI serializes the response (None for a `Response`), and the form, if any."""
    returned = get_type_hints(endpoint, include_extras=True)["return"]
    if get_origin(returned) is Annotated:
        return None, get_args(returned)[1]
    if isinstance(returned, type) and issubclass(returned, Response | NoneType):
        return None, None
    return dict[str, Any], returned
