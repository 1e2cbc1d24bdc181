"""Lockstep's own routes with which an operator of all projects creates, lists and revokes API keys."""

from __future__ import annotations

import logging
import time
from typing import Annotated, Final, final

from pydantic import Field, StringConstraints

from lockstep.errors import InvalidInputError
from lockstep.jobs.security.access import ALL_PROJECTS, HOME_LABEL, Principal, Scope
from lockstep.service.api.access import RequestPrincipal, requires_scope
from lockstep.service.api.forms import KeyForm, KeyListForm
from lockstep.service.api.requests import AbstractRequest, Body, Context, KeyProject, parse_request
from lockstep.service.api.resources import key_resource
from lockstep.service.api.routes import make_router
from lockstep.service.security.keys import digest, make_key

LOGGER: Final = logging.getLogger(__name__)

MAX_VALID_S: Final = 10 * 366 * 86400.0

router = make_router()

Label = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,62}$")]
"""The owner of a key. Labels appear in end reasons, so they have no spaces and no parentheses."""


@final
class _KeyRequest(AbstractRequest):
    label: Label
    scope: Scope
    project: KeyProject
    valid_seconds: Annotated[float, Field(gt=0, le=MAX_VALID_S)] | None


@router.post("/v1/keys")
@requires_scope(Scope.OPERATOR)
def create_key(body: Body, context: Context, principal: RequestPrincipal) -> KeyForm:
    """Creates a key. Only this response ever contains its secret."""
    request = parse_request(_KeyRequest, body)
    if request.label == HOME_LABEL:
        raise InvalidInputError("label", received=HOME_LABEL, allowed="a label other than that of the home's token")
    made = make_key()
    record = context.keys.create(
        made.id,
        digest=digest(made.secret),
        principal=Principal(label=request.label, scope=request.scope, project=request.project, key_id=made.id),
        created_by=principal.label,
        expire_time_s=None if request.valid_seconds is None else time.time() + request.valid_seconds,
    )
    where = "all projects" if record.project == ALL_PROJECTS else f"project {record.project}"
    LOGGER.info(
        "key %s of %s, a %s of %s, was made by %s", record.id, record.label, record.scope, where, principal.label
    )
    return {**key_resource(record), "secret": made.secret}


@router.get("/v1/keys")
@requires_scope(Scope.OPERATOR)
def list_keys(context: Context) -> KeyListForm:
    """Lists all keys, the oldest first, without their secrets, which are not stored."""
    return {"keys": [key_resource(record) for record in context.keys.list()]}


@router.post("/v1/keys/{key}:revoke")
@requires_scope(Scope.OPERATOR)
def revoke_key(key: str, context: Context, principal: RequestPrincipal) -> KeyForm:
    """Revokes a key, immediately and permanently."""
    record = context.keys.revoke(key, principal_label=principal.label)
    LOGGER.info("key %s of %s was revoked by %s", record.id, record.label, principal.label)
    return key_resource(record)
