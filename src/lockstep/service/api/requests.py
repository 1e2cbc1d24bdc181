"""What every route needs of a request: the service's parts, the project, the body."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final

from fastapi import Depends, Path, Request

from lockstep.errors import InvalidInputError
from lockstep.service.context import ServiceContext

MAX_BODY_BYTES: Final = 32 * 1024 * 1024


def _context(request: Request) -> ServiceContext:
    return request.app.state.context


async def read_body(request: Request) -> bytes:
    """Returns a request's body.

    Raises:
        InvalidInputError: it is larger than `MAX_BODY_BYTES`.
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise InvalidInputError("the request's body is too large", allowed=f"{MAX_BODY_BYTES} bytes at most")
    return bytes(body)


async def _json_object(request: Request) -> dict[str, Any]:
    body = await read_body(request)
    try:
        document = json.loads(body or b"{}")
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"the request's body is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise InvalidInputError("the request's body", received=document, allowed="a JSON object")
    return document


Context = Annotated[ServiceContext, Depends(_context)]
Body = Annotated[dict[str, Any], Depends(_json_object)]
Project = Annotated[str, Path(pattern=r"^[a-z][a-z0-9-]{0,62}$")]
Name = Annotated[str, Path(pattern=r"^[a-zA-Z][a-zA-Z0-9_]{0,127}$")]
