"""``projects.locations.operations`` of Vertex AI."""

from __future__ import annotations

import asyncio
import re
import time
from functools import partial
from typing import Annotated, Final

from fastapi import Path, Query, Request
from starlette.concurrency import run_in_threadpool

from lockstep.errors import InvalidInputError
from lockstep.jobs.security.access import Scope
from lockstep.service.api.access import RequestPrincipal, requires_scope
from lockstep.service.api.forms import EmptyForm, VertexOperationForm, VertexOperationListForm
from lockstep.service.api.pages import PageSize, PageToken, list_answer
from lockstep.service.api.requests import Context, Name
from lockstep.service.api.routes import make_router
from lockstep.service.api.vertex.endpoints import CREATE, create_operation
from lockstep.service.api.vertex.models import UPLOAD, upload_operation
from lockstep.service.api.vertex.places import InPlace
from lockstep.service.api.vertex.resources import endpoint_of, operation_resource

MAX_WAIT_S: Final = 60.0
"""How long `wait_for_operation` waits at most, in seconds. A client that waits longer sends another request."""
POLL_INTERVAL_S: Final = 0.25
"""How often it reads the operation, in seconds."""

router = make_router()

OperationName = Annotated[str, Path(pattern=r"^[a-zA-Z]\w{0,160}$")]


@router.get("/operations")
@requires_scope(Scope.VIEWER)
def list_operations(
    place: InPlace, context: Context, page_size: PageSize = 0, page_token: PageToken = ""
) -> VertexOperationListForm:
    """``projects.locations.operations.list``, the newest first: those that were not done at once."""
    return list_answer(
        "operations",
        read=partial(context.models.page_operations, project=place.project),
        holds=None,
        position=lambda record: (record.create_time_s, record.name),
        show=lambda records: [operation_resource(record, place=place, context=context) for record in records],
        size=page_size,
        token=page_token,
    )


@router.get("/operations/{operation}")
@requires_scope(Scope.VIEWER)
def get_operation(place: InPlace, operation: OperationName, context: Context) -> VertexOperationForm:
    """``projects.locations.operations.get``."""
    if operation.startswith(UPLOAD):
        name = operation.removeprefix(UPLOAD)
        uploaded = context.uploads.get(project=place.project, name=name, region=place.location)
        return upload_operation(uploaded, place=place)
    if operation.startswith(CREATE):
        return create_operation(
            endpoint_of(place, operation.removeprefix(CREATE), context), place=place, context=context
        )
    record = context.models.get_operation(project=place.project, name=operation)
    return operation_resource(record, place=place, context=context)


@router.post("/operations/{operation}:wait")
@requires_scope(Scope.VIEWER)
async def wait_for_operation(
    place: InPlace, operation: OperationName, context: Context, request: Request, timeout: Annotated[str, Query()] = ""
) -> VertexOperationForm:
    """``projects.locations.operations.wait``: answers when the operation is done, or the timeout is over.

    The timeout is a number of seconds, such as ``30s``; `MAX_WAIT_S` at most, and by default.
    """
    deadline = time.monotonic() + _wait_s(timeout)
    while True:
        found = await run_in_threadpool(get_operation, place, operation, context)
        left_s = deadline - time.monotonic()
        if found.get("done") or left_s <= 0 or await request.is_disconnected():
            return found
        await asyncio.sleep(min(left_s, POLL_INTERVAL_S))


def _wait_s(text: str) -> float:
    if not text:
        return MAX_WAIT_S
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?s", text, re.ASCII):
        raise InvalidInputError("timeout", received=text, allowed="a number of seconds, such as 30s")
    return min(MAX_WAIT_S, float(text[:-1]))


@router.post("/operations/{operation}:cancel")
@requires_scope(Scope.SUBMITTER)
def cancel_operation(place: InPlace, operation: Name, context: Context, principal: RequestPrincipal) -> EmptyForm:
    """``projects.locations.operations.cancel``, for a deployment. Its prediction server is ended afterwards."""
    context.models.cancel_operation(project=place.project, name=operation, principal_label=principal.label)
    return {}
