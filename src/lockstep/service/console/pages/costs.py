"""What jobs, models and days cost, and what is left of budgets."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import htpy as h
from starlette.requests import Request

from lockstep.errors import InvalidInputError
from lockstep.service.api.billing import costs as costs_api
from lockstep.service.console.calls import call
from lockstep.service.console.layout import default_project, page, table
from lockstep.service.console.signing_in import Session
from lockstep.service.context import ServiceContext

DIVISIONS: Final = ("job", "day", "model", "version", "node-type", "project")
LAST: Final = timedelta(days=30)
TITLES: Final = ("", "Machine hours", "ML units", "Cost", "Owed", "Unused servers")


def show(request: Request, session: Session, context: ServiceContext) -> h.Element:
    """Returns the page."""
    query = request.query_params
    project = query.get("project") or default_project(session.principal)
    by = query.get("by") or "job"
    since = query.get("since") or (datetime.now(tz=UTC) - LAST).date().isoformat()
    return page(
        h.form(".bar", method="get", action="/costs")[
            h.label["Project", h.input(name="project", value=project, autocomplete="off")],
            h.label[
                "By",
                h.input(name="by", value=by, list="divisions", autocomplete="off"),
                h.datalist("#divisions")[(h.option(value=name) for name in (*DIVISIONS, "label:team"))],
            ],
            h.label["Since", h.input(name="since", value=since, placeholder="2026-01-31", autocomplete="off")],
            h.button(type="submit")["Show"],
        ],
        _report(session, context, project=project, by=by, since=since),
        title="Costs",
        session=session,
        path="/costs",
        project=project,
    )


def _report(session: Session, context: ServiceContext, *, project: str, by: str, since: str) -> h.Node:
    try:
        moment = f"{since}T00:00:00Z" if len(since) == len("2026-01-31") else since
        found = call(costs_api.costs, session.principal, context, project=project, by=by, since=moment)
    except InvalidInputError as error:
        return h.p(".error", role="alert")[str(error)]
    rows = sorted(found["rows"], key=lambda row: Decimal(row["costUsd"]), reverse=True)
    return [
        h.p(".muted")["Costs follow the catalogue's prices. What is owed leaves out simulated machines."],
        table((by.capitalize(), *TITLES[1:]), [_row(row) for row in rows], label="Costs", numbers=(1, 2, 3, 4, 5))
        if rows
        else h.p(".muted")["Nothing was spent."],
        h.p[h.strong["Total: "], f"${found['total']['costUsd']}, of which ${found['total']['owedUsd']} are owed"],
        _budgets(found["budgets"]),
    ]


def _row(row: dict[str, Any]) -> tuple[h.Node, ...]:
    return (
        row["name"],
        row["machineHours"],
        row["mlUnits"],
        f"${row['costUsd']}",
        f"${row['owedUsd']}",
        f"${row['unusedUsd']}" if Decimal(row["unusedServerHours"]) else "",
    )


def _budgets(budgets: list[dict[str, Any]]) -> h.Node:
    if not budgets:
        return None
    rows = [
        (budget["period"], f"${budget['spentUsd']}", f"${budget['limitUsd']}", budget["text"]) for budget in budgets
    ]
    titles = ("Period", "Spent", "Limit", "")
    return [h.h2["Budgets"], table(titles, rows, label="Budgets", numbers=(1, 2))]
