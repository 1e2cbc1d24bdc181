"""Who may do what: the reader's own key, all keys, the project's secrets, and the operator's webhooks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import htpy as h
from starlette.requests import Request

from lockstep.jobs.security.access import ALL_PROJECTS
from lockstep.service.api import system, webhooks
from lockstep.service.api.forms import DeliveryForm
from lockstep.service.api.security import keys as keys_api
from lockstep.service.console.calls import call, is_allowed
from lockstep.service.console.layout import default_project, facts, page, table, when
from lockstep.service.console.pages.keys import keys_section
from lockstep.service.console.pages.secrets import secrets_section
from lockstep.service.console.signing_in import Session
from lockstep.service.context import ServiceContext

NUM_DELIVERIES_SHOWN: Final = 10


def show(request: Request, session: Session, context: ServiceContext) -> h.Element:
    """Returns the page."""
    query, principal = request.query_params, session.principal
    project = query.get("project") or default_project(principal)
    own = call(system.whoami, principal, context)
    is_operator = principal.is_for_all_projects and is_allowed(keys_api.list_keys, principal)
    return page(
        h.h2["Your key"],
        facts(
            [
                ("Owner", own["label"]),
                ("Key", h.code[own["key"]] if own["key"] else "the home's own token"),
                ("Scope", own["scope"]),
                ("Project", "all projects" if own["project"] == ALL_PROJECTS else own["project"]),
                ("Bucket", h.code[own["bucket"]]),
            ]
        ),
        keys_section(session, context, project=project, everything="all" in query) if is_operator else None,
        secrets_section(session, context, project=project),
        _webhooks(session, context) if is_operator else None,
        title="Access",
        session=session,
        path="/access",
        project=project,
    )


def _webhooks(session: Session, context: ServiceContext) -> h.Node:
    found = call(system.service, session.principal, context)["webhooks"]
    rows = [
        (
            webhook["name"],
            webhook["place"],
            "fails" if webhook["problem"] else "works",
            "-" if webhook["since"] is None else when(_moment(webhook["since"])),
            webhook["problem"] or "",
        )
        for webhook in found
    ]
    return [
        h.h2["Webhooks of the service"],
        table(("Name", "Place", "Deliveries", "Since", "Problem"), rows, label="Webhooks")
        if rows
        else h.p(".muted")["The service has none: see ", h.code["lockstep up --webhooks"], "."],
        [_deliveries(session, context, name=webhook["name"]) for webhook in found],
        h.p(".muted")["A job's own webhooks are on its page."],
    ]


def _deliveries(session: Session, context: ServiceContext, *, name: str) -> h.Element:
    found: Sequence[DeliveryForm] = call(webhooks.operator_deliveries, session.principal, context, webhook=name)[
        "deliveries"
    ]
    rows = [
        (
            when(each["time"]),
            f"{each['event']} {each['state'] or ''}",
            f"{each['project']}/{each['jobId']}" if each["jobId"] else each["project"],
            str(each["attempt"]),
            each["problem"] or f"accepted: {each['status']}",
            f"{each['seconds']:.2f} s",
        )
        for each in found[:NUM_DELIVERIES_SHOWN]
    ]
    titles = ("Time", "Event", "Of", "Attempt", "Answer", "Took")
    return h.details[
        h.summary[f"Last deliveries of {name}"],
        table(titles, rows, label=f"Deliveries of {name}", numbers=(3, 5)) if rows else h.p(".muted")["None yet."],
        h.p(".muted")["More: ", h.code[f"lockstep webhooks deliveries {name}"]] if len(found) > len(rows) else None,
    ]


def _moment(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, tz=UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
