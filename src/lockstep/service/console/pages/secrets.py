"""The secrets of a project: their names, setting one, and removing one. Their values are never shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode

import htpy as h
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from lockstep.service.api.security import secrets as secrets_api
from lockstep.service.console.calls import call, is_allowed
from lockstep.service.console.forms import form_of
from lockstep.service.console.layout import csrf_field, table, when
from lockstep.service.console.names import check_name
from lockstep.service.console.signing_in import Session
from lockstep.service.context import ServiceContext

MAX_SECRETS: Final = 200
"""The most secrets that are shown, by name."""


def secrets_section(session: Session, context: ServiceContext, *, project: str) -> h.Node:
    """Returns the names of a project's secrets, with forms for those who may change them.

    Args:
        session: the session of the reader.
        context: the parts of the service.
        project: the project.
    """
    found = call(secrets_api.list_secrets, session.principal, context, project=project)["secrets"]
    may_change = is_allowed(secrets_api.put_secret, session.principal)
    rows = [
        (
            secret["name"],
            when(secret["createTime"]),
            [when(secret["updateTime"]), f" by {secret['updatedBy']}"],
            _remove_form(session, project=project, secret=secret) if may_change else "",
        )
        for secret in found[:MAX_SECRETS]
    ]
    more = len(found) - MAX_SECRETS
    return h.section("#secrets")[
        h.h2["Secrets"],
        h.form(".bar", method="get", action="/access")[
            h.label["Project", h.input(name="project", value=project, autocomplete="off")],
            h.button(type="submit")["Show"],
        ],
        table(("Name", "Made", "Set", ""), rows, label="Secrets")
        if rows
        else h.p(".muted")[f"Project {project} has no secrets."],
        h.p(".muted")[f"and {more} more: see ", h.code["lockstep secrets list"]] if more > 0 else None,
        _form(session, project=project) if may_change else None,
    ]


def _remove_form(session: Session, *, project: str, secret: Mapping[str, Any]) -> h.Element:
    return h.details(".confirm")[
        h.summary["Remove"],
        h.form(method="post", action="/access/secrets/remove")[
            csrf_field(session),
            h.input(type="hidden", name="project", value=project),
            h.input(type="hidden", name="secret", value=secret["name"]),
            h.p["Jobs that name it cannot start until it is set again."],
            h.button(".danger", type="submit")[f"Remove {secret['name']}"],
        ],
    ]


def _form(session: Session, *, project: str) -> h.Element:
    return h.details(".confirm")[
        h.summary["Set a secret"],
        h.form(method="post", action="/access/secrets")[
            csrf_field(session),
            h.input(type="hidden", name="project", value=project),
            h.p(".bar")[
                h.label["Name", h.input(name="secret", required=True, autocomplete="off", spellcheck="false")],
                h.label["Value", h.input(".wide", type="password", name="value", required=True, autocomplete="off")],
            ],
            h.p(".muted")["One of the same name is replaced. Nobody can read the value afterwards."],
            h.button(".primary", type="submit")["Set it"],
        ],
    ]


def put(request: Request, session: Session, context: ServiceContext) -> Response:
    """Sets a secret."""
    form = form_of(request).fields
    names = _names(form)
    call(secrets_api.put_secret, session.principal, context, **names, body={"value": form.get("value", "")})
    return _back(names)


def remove(request: Request, session: Session, context: ServiceContext) -> Response:
    """Removes a secret."""
    names = _names(form_of(request).fields)
    call(secrets_api.remove_secret, session.principal, context, **names)
    return _back(names)


def _names(form: Mapping[str, str]) -> dict[str, str]:
    return {name: check_name(form.get(name, ""), what=name) for name in ("project", "secret")}


def _back(names: Mapping[str, str]) -> Response:
    return RedirectResponse(f"/access?{urlencode({'project': names['project']})}#secrets", 303)
