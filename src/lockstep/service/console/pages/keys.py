"""The keys: who has which, making one, and revoking one."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import htpy as h
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from lockstep.errors import InvalidInputError
from lockstep.jobs.security.access import ALL_PROJECTS, Scope
from lockstep.service.api.security import keys as keys_api
from lockstep.service.console.calls import call
from lockstep.service.console.forms import form_of
from lockstep.service.console.layout import csrf_field, facts, page, table, when
from lockstep.service.console.signing_in import Session
from lockstep.service.context import ServiceContext

MAX_KEYS: Final = 200
"""The most keys that are shown, the newest first."""
DAY_S: Final = 86400.0
TITLES: Final = ("Owner", "Key", "Scope", "For", "Made", "Expires", "Last use", "")


def keys_section(session: Session, context: ServiceContext, *, project: str, everything: bool) -> h.Node:
    """Returns the keys, with a form that makes one.

    Args:
        session: the session of the reader, an operator of all projects.
        context: the parts of the service.
        project: the project that is proposed for a new key.
        everything: whether keys that are not valid any more are shown, too.
    """
    found = call(keys_api.list_keys, session.principal, context)["keys"][::-1]
    now = datetime.now(tz=UTC)
    valid = [key for key in found if not _end(key, now=now)]
    listed = found if everything else valid
    return h.section("#keys")[
        h.h2["Keys"],
        table(TITLES, [_row(session, key, now=now) for key in listed[:MAX_KEYS]], label="Keys")
        if listed
        else h.p(".muted")["There are no keys."],
        h.p(".muted")[f"and {len(listed) - MAX_KEYS} older ones: see ", h.code["lockstep keys list"]]
        if len(listed) > MAX_KEYS
        else None,
        h.p[h.a(href="/access?all=on")[f"Show {len(found) - len(valid)} that are not valid any more"]]
        if not everything and len(found) > len(valid)
        else None,
        _form(session, project=project),
    ]


def _end(key: Mapping[str, Any], *, now: datetime) -> str:
    """Returns why a key is not valid; "" if it is."""
    if key["revokeTime"] is not None:
        return f"revoked by {key['revokedBy']}"
    expires = key["expireTime"]
    return "expired" if expires is not None and datetime.fromisoformat(expires) <= now else ""


def _row(session: Session, key: Mapping[str, Any], *, now: datetime) -> tuple[h.Node, ...]:
    end = _end(key, now=now)
    return (
        key["label"],
        h.code[key["key"]],
        key["scope"],
        _reach(key),
        [when(key["createTime"]), f" by {key['createdBy']}"],
        when(key["expireTime"]),
        when(key["lastUsedTime"]),
        end or _revoke_form(session, key),
    )


def _reach(key: Mapping[str, Any]) -> str:
    """Returns what a key is for."""
    project = "all projects" if key["project"] == ALL_PROJECTS else f"project {key['project']}"
    model = "" if key["model"] is None else f"model {key['model']} of "
    version = "" if key["version"] is None else f"version {key['version']} of "
    rate = "" if key["requestsPerSecond"] is None else f", {key['requestsPerSecond']:g} requests a second"
    return f"{version}{model}{project}{rate}"


def _revoke_form(session: Session, key: Mapping[str, Any]) -> h.Element:
    return h.details(".confirm")[
        h.summary["Revoke"],
        h.form(method="post", action="/access/keys/revoke")[
            csrf_field(session),
            h.input(type="hidden", name="key", value=key["key"]),
            h.p["It stops working at once, and for ever."],
            h.button(".danger", type="submit")[f"Revoke the key of {key['label']}"],
        ],
    ]


def _form(session: Session, *, project: str) -> h.Element:
    return h.details(".confirm")[
        h.summary["Make a key"],
        h.form(method="post", action="/access/keys")[
            csrf_field(session),
            h.p(".bar")[
                h.label[
                    "Owner", h.input(name="label", required=True, autocomplete="off", placeholder="ann@example.com")
                ],
                h.label[
                    "Scope",
                    h.select(name="scope")[
                        (h.option(value=scope, selected=scope is Scope.SUBMITTER)[scope] for scope in Scope)
                    ],
                ],
                h.label[f"Project, {ALL_PROJECTS} for all", h.input(name="project", required=True, value=project)],
                h.label["Valid for, days", h.input(type="number", name="days", min=1, placeholder="for ever")],
            ],
            h.p(".bar")[
                h.label["Model, for a caller", h.input(name="model", autocomplete="off")],
                h.label["Version of it", h.input(name="version", autocomplete="off")],
                h.label[
                    "Requests for predictions a second",
                    h.input(type="number", name="rate", min="0.001", step="any", placeholder="no limit"),
                ],
            ],
            h.button(".primary", type="submit")["Make the key"],
        ],
    ]


def create(request: Request, session: Session, context: ServiceContext) -> h.Element:
    """Makes a key, and shows its secret this once."""
    form = form_of(request).fields
    days, rate = _number(form, "days"), _number(form, "rate")
    body: dict[str, Any] = {
        "label": form.get("label", "").strip(),
        "scope": form.get("scope", ""),
        "project": form.get("project", "").strip(),
        "validSeconds": None if days is None else days * DAY_S,
        "model": form.get("model", "").strip() or None,
        "version": form.get("version", "").strip() or None,
        "requestsPerSecond": rate,
    }
    made = call(keys_api.create_key, session.principal, context, body=body)
    return page(
        h.p[h.strong["Copy the key now. It cannot be shown again."]],
        h.div(".copy")[
            h.pre("#secret", tabindex="0")[made["secret"]],
            h.p(".bar")[h.button(type="button", data_copy="on", hidden=True)["Copy"]],
        ],
        facts(
            [
                ("Owner", made["label"]),
                ("Scope", made["scope"]),
                ("For", _reach(made)),
                ("Expires", when(made["expireTime"]) if made["expireTime"] else "never"),
            ]
        ),
        h.p[h.a(href="/access")["To all keys"]],
        title="A new key",
        session=session,
        path="/access",
    )


def _number(form: Mapping[str, str], name: str) -> float | None:
    """Returns a number of a form; None if it was left out.

    Raises:
        InvalidInputError: If it is not one.
    """
    text = form.get(name, "").strip()
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise InvalidInputError(name, received=text, allowed="a number") from None


def revoke(request: Request, session: Session, context: ServiceContext) -> Response:
    """Revokes a key."""
    form = form_of(request).fields
    call(keys_api.revoke_key, session.principal, context, key=form.get("key", ""))
    return RedirectResponse("/access", 303)
