"""Routes that declare their responses: the form in the endpoint's return annotation, and errors in Google's form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import NoneType
from typing import Annotated, Any, Final, final, get_args, get_origin, get_type_hints

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.responses import Response

from lockstep.service.api.forms import ErrorForm, InferenceErrorForm

ERRORS: Final[Mapping[int | str, dict[str, Any]]] = {
    "4XX": {"description": "The request cannot be honoured, and why.", "model": ErrorForm},
    "5XX": {"description": "Something that the service needs does not answer, or is not there.", "model": ErrorForm},
}
"""The error responses that any route may return."""
INFERENCE_ERRORS: Final[Mapping[int | str, dict[str, Any]]] = {
    code: {**response, "model": InferenceErrorForm} for code, response in ERRORS.items()
}
"""The error responses of routes of the Open Inference Protocol."""


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
        super().__init__(path, endpoint, **options)


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
