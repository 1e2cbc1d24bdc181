"""``projects.operations`` of the contract: get, list, cancel."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import Query

from lockstep.errors import UnimplementedError
from lockstep.jobs.lists.filters import parse_operation_filter
from lockstep.jobs.security.access import Scope
from lockstep.service.api.access import RequestPrincipal, requires_scope
from lockstep.service.api.forms import EmptyForm, OperationForm, OperationListForm
from lockstep.service.api.pages import Filter, PageSize, PageToken, list_answer
from lockstep.service.api.prediction.views import operation_of
from lockstep.service.api.requests import Context, Name, Project
from lockstep.service.api.resources import operation_resource
from lockstep.service.api.routes import make_router
from lockstep.service.store import OperationRecord

router = make_router()


def _filtered(record: OperationRecord) -> dict[str, Any]:
    """Returns the resource that filters are applied to. Unlike in responses, ``done`` is present if it is False."""
    return {"done": False, **operation_resource(record)}


@router.get("/operations")
@requires_scope(Scope.VIEWER)
def list_operations(
    project: Project,
    context: Context,
    filter_text: Filter = "",
    page_size: PageSize = 0,
    page_token: PageToken = "",
    return_partial_success: Annotated[bool, Query(alias="returnPartialSuccess")] = False,
) -> OperationListForm:
    """``projects.operations.list``, the newest first."""
    if return_partial_success:
        raise UnimplementedError(
            "returnPartialSuccess: the operations of a project are in one place, so partial results do not occur",
            action="leave it out",
        )
    predicate = parse_operation_filter(filter_text)
    return list_answer(
        "operations",
        read=partial(context.models.page_operations, project=project),
        holds=lambda record: predicate(_filtered(record)),
        position=lambda record: (record.create_time_s, record.name),
        show=lambda records: [operation_of(record, context) for record in records],
        size=page_size,
        token=page_token,
    )


@router.get("/operations/{operation}")
@requires_scope(Scope.VIEWER)
def get(project: Project, operation: Name, context: Context) -> OperationForm:
    """``projects.operations.get``."""
    return operation_of(context.models.get_operation(project=project, name=operation), context)


@router.post("/operations/{operation}:cancel")
@requires_scope(Scope.SUBMITTER)
def cancel(project: Project, operation: Name, context: Context, principal: RequestPrincipal) -> EmptyForm:
    """``projects.operations.cancel``, for the creation of a version. Its prediction server is ended afterwards."""
    context.models.cancel_operation(project=project, name=operation, principal_label=principal.label)
    return {}
