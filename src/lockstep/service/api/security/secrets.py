"""Lockstep's own routes for a project's secrets. Submitters set and remove them; nobody can read their values."""

from __future__ import annotations

import logging
from typing import Annotated, Final

from fastapi import Path

from lockstep.errors import InvalidInputError
from lockstep.jobs.parsing.fields import SECRET_NAME
from lockstep.jobs.security.access import Scope
from lockstep.service.api.access import RequestPrincipal, requires_scope
from lockstep.service.api.forms import EmptyForm, SecretListForm, SecretNameForm
from lockstep.service.api.requests import Body, Context, Project
from lockstep.service.api.resources import timestamp
from lockstep.service.api.routes import make_router

LOGGER: Final = logging.getLogger(__name__)

router = make_router()

SecretName = Annotated[str, Path(pattern=f"^{SECRET_NAME}$")]


@router.put("/secrets/{secret}")
@requires_scope(Scope.SUBMITTER)
def put_secret(
    project: Project, secret: SecretName, body: Body, context: Context, principal: RequestPrincipal
) -> SecretNameForm:
    """Creates or replaces a secret. The body is ``{"value": "..."}``."""
    value = body.get("value")
    if set(body) != {"value"} or not isinstance(value, str):  # the message omits the body: it may be the secret
        raise InvalidInputError("the request's body is not a secret", allowed='{"value": text}')
    context.vault.put(project=project, name=secret, value=value, principal_label=principal.label)
    LOGGER.info("secret %s of project %s was set by %s", secret, project, principal.label)
    return {"name": secret}


@router.get("/secrets")
@requires_scope(Scope.VIEWER)
def list_secrets(project: Project, context: Context) -> SecretListForm:
    """Lists a project's secrets by name, without their values."""
    return {
        "secrets": [
            {
                "name": record.name,
                "createTime": timestamp(record.create_time_s),
                "updateTime": timestamp(record.update_time_s),
                "updatedBy": record.updated_by,
            }
            for record in context.vault.list(project=project)
        ]
    }


@router.delete("/secrets/{secret}")
@requires_scope(Scope.SUBMITTER)
def remove_secret(project: Project, secret: SecretName, context: Context, principal: RequestPrincipal) -> EmptyForm:
    """Removes a secret."""
    context.vault.remove(project=project, name=secret)
    LOGGER.info("secret %s of project %s was removed by %s", secret, project, principal.label)
    return {}
