"""Lockstep's own routes with which an operator of all projects creates, lists and revokes API keys."""

from __future__ import annotations

import logging
import time
from typing import Annotated, Final, final

from pydantic import Field, StringConstraints

from lockstep.errors import ConfigError, InvalidInputError
from lockstep.jobs.security.access import (
    ALL_PROJECTS,
    HOME_LABEL,
    MAX_REQUESTS_PER_SECOND,
    MIN_REQUESTS_PER_SECOND,
    Principal,
    Scope,
)
from lockstep.service.api.access import RequestPrincipal, requires_scope
from lockstep.service.api.forms import KeyForm, KeyListForm
from lockstep.service.api.requests import NAME, AbstractRequest, Body, Context, KeyProject, parse_request
from lockstep.service.api.resources import key_resource
from lockstep.service.api.routes import make_router
from lockstep.service.security.keys import digest, make_key

LOGGER: Final = logging.getLogger(__name__)

MAX_VALID_S: Final = 10 * 366 * 86400.0

router = make_router()

Label = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,62}$")]
"""The owner of a key. Labels appear in end reasons, so they have no spaces and no parentheses."""


ModelName = Annotated[str, StringConstraints(pattern=NAME)]


@final
class _KeyRequest(AbstractRequest):
    label: Label
    scope: Scope
    project: KeyProject
    valid_seconds: Annotated[float, Field(gt=0, le=MAX_VALID_S)] | None
    model: ModelName | None = None
    version: ModelName | None = None
    requests_per_second: Annotated[float, Field(ge=MIN_REQUESTS_PER_SECOND, le=MAX_REQUESTS_PER_SECOND)] | None = None

    def principal(self, key_id: str) -> Principal:
        """Returns the principal of the new key.

        Raises:
            ConfigError: If the fields contradict each other.
        """
        if self.scope is Scope.CALLER and (self.model is None or self.project == ALL_PROJECTS):
            raise ConfigError("scope: a caller's key is for one model of one project", action="add project and model")
        if self.scope is not Scope.CALLER and self.model is not None:
            raise ConfigError(
                "model: only a caller's key is for one model", received=self.scope.value, allowed=[Scope.CALLER.value]
            )
        if self.version is not None and self.model is None:
            raise ConfigError("version: there is no model that it is a version of", action="add model")
        return Principal(
            label=self.label,
            scope=self.scope,
            project=self.project,
            key_id=key_id,
            model=self.model,
            version=self.version,
            requests_per_second=self.requests_per_second,
        )


@router.post("/v1/keys")
@requires_scope(Scope.OPERATOR)
def create_key(body: Body, context: Context, principal: RequestPrincipal) -> KeyForm:
    """Creates a key. Only this response ever contains its secret. The model of a caller's key must exist."""
    request = parse_request(_KeyRequest, body)
    if request.label == HOME_LABEL:
        raise InvalidInputError("label", received=HOME_LABEL, allowed="a label other than that of the home's token")
    made = make_key()
    asked = request.principal(made.id)
    if asked.model is not None:
        context.models.get_model(project=asked.project, name=asked.model)
        if asked.version is not None:
            context.models.get_version(project=asked.project, model=asked.model, name=asked.version)
    record = context.keys.create(
        made.id,
        digest=digest(made.secret),
        principal=asked,
        created_by=principal.label,
        expire_time_s=None if request.valid_seconds is None else time.time() + request.valid_seconds,
    )
    where = "all projects" if record.project == ALL_PROJECTS else f"project {record.project}"
    if record.model is not None:
        version = "" if record.model_version is None else f"version {record.model_version} of "
        where = f"{version}model {record.model} in {where}"
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
