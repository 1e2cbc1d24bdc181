"""What jobs, models and days cost, how much of it was for nothing, and what is left of budgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, final
from urllib.parse import urlencode

import htpy as h
from starlette.requests import Request

from lockstep.errors import InvalidInputError
from lockstep.jobs.security.access import ALL_PROJECTS
from lockstep.service.api.billing import costs as costs_api
from lockstep.service.console.bars import MAX_BARS, Bar, bar_chart, used_strip
from lockstep.service.console.calls import call, check_may
from lockstep.service.console.layout import default_project, duration, job_path, model_path, page, table
from lockstep.service.console.signing_in import Session
from lockstep.service.context import ServiceContext

DIVISIONS: Final = ("job", "day", "model", "version", "node-type", "project")
REPORT_PATH: Final = "/costs/report"
LAST: Final = timedelta(days=30)
MAX_ROWS: Final = 200
"""The most rows that are shown, the dearest first."""
TITLES: Final = ("Machine hours", "ML units", "Cost", "Owed", "Servers without requests", "Storage")
WASTE: Final = {
    "used": "used by jobs and servers",
    "provisioning": "starting",
    "idle": "idle",
    "failed": "failed before or while they worked",
}
"""What the time of nodes was for, in words."""


@final
@dataclass(frozen=True, kw_only=True)
class _Asked:
    """What a report is asked for, as the address says it. See the route of costs.

    Attributes:
        project: the project; ``*`` for all.
        by: what a row is.
        since: the start, a day or a time.
        until: the end; "" for now.
    """

    project: str
    by: str
    since: str
    until: str

    @classmethod
    def of(cls, request: Request, session: Session) -> _Asked:
        query = request.query_params
        return cls(
            project=query.get("project") or default_project(session.principal),
            by=query.get("by") or "job",
            since=query.get("since") or (datetime.now(tz=UTC) - LAST).date().isoformat(),
            until=query.get("until", ""),
        )

    def at(self, path: str, **more: str) -> str:
        """Returns an address with this report."""
        return f"{path}?{urlencode({**asdict(self), **more})}"

    def check_may(self, session: Session) -> None:
        """Checks that a person may see the report.

        Raises:
            LockstepError: If the person may not.
        """
        if self.project == ALL_PROJECTS:
            check_may(costs_api.all_costs, session.principal, project=None)
        else:
            check_may(costs_api.costs, session.principal, project=self.project)


def show(request: Request, session: Session, context: ServiceContext) -> h.Element:
    """Returns the page. The report comes later, because it takes longer, unless ``report=on`` asks for it at once."""
    asked = _Asked.of(request, session)
    asked.check_may(session)
    is_whole = request.query_params.get("report") == "on"
    return page(
        h.form(".bar", method="get", action="/costs")[
            h.label[
                "Project",
                h.input(
                    name="project",
                    value=asked.project,
                    autocomplete="off",
                    title=f"{ALL_PROJECTS} for all projects" if session.principal.is_for_all_projects else None,
                ),
            ],
            h.label[
                "By",
                h.input(name="by", value=asked.by, list="divisions", autocomplete="off"),
                h.datalist("#divisions")[(h.option(value=name) for name in (*DIVISIONS, "label:team"))],
            ],
            h.label["Since", h.input(name="since", value=asked.since, placeholder="2026-01-31", autocomplete="off")],
            h.label["Until", h.input(name="until", value=asked.until, placeholder="now", autocomplete="off")],
            h.input(type="hidden", name="report", value="on") if is_whole else None,
            h.button(type="submit")["Show"],
        ],
        _report(session, context, asked) if is_whole else _later(asked),
        title="Costs",
        session=session,
        path="/costs",
        project=asked.project,
    )


def show_report(request: Request, session: Session, context: ServiceContext) -> h.Element:
    """Returns the part of the page with the report."""
    return _report(session, context, _Asked.of(request, session))


def _later(asked: _Asked) -> h.Element:
    """Returns the place of the report, which is asked for when the page is shown. The link is for other browsers."""
    return h.section("#report", hx_get=asked.at(REPORT_PATH), hx_trigger="load")[
        h.p(".muted", role="status")["The costs are being added up."],
        h.p[h.a(href=asked.at("/costs", report="on"))["Show the report"]],
    ]


def _report(session: Session, context: ServiceContext, asked: _Asked) -> h.Element:
    def ask(division: str) -> Mapping[str, Any]:
        bounds = {"since": _moment(asked.since), "until": _moment(asked.until), "by": division}
        if asked.project == ALL_PROJECTS:
            return call(costs_api.all_costs, session.principal, context, **bounds)
        return call(costs_api.costs, session.principal, context, project=asked.project, **bounds)

    by = asked.by
    try:
        found = ask(by)
        days = found if by == "day" else ask("day")
    except InvalidInputError as error:
        return h.section("#report")[h.p(".error", role="alert")[str(error)]]
    rows = sorted(found["rows"], key=lambda row: Decimal(row["costUsd"]), reverse=True)
    if by == "day":
        rows = sorted(found["rows"], key=lambda row: row["name"], reverse=True)
    total = found["total"]
    return h.section("#report")[
        h.p[
            h.strong["Total: "],
            f"${total['costUsd']} at list prices, of which ${total['owedUsd']} are owed. ",
            "Nothing is owed for simulated machines.",
        ],
        h.div(".wide-chart")[bar_chart("Cost by day", unit="$", bars=_bars(days["rows"]))],
        _waste(total),
        h.h2[f"By {by}"],
        table(
            (by.capitalize(), *TITLES),
            [_row(row, by=by, project=asked.project) for row in rows[:MAX_ROWS]],
            label="Costs",
            numbers=(1, 2, 3, 4, 5, 6),
        )
        if rows
        else h.p(".muted")["Nothing was spent."],
        h.p(".muted")[f"and {len(rows) - MAX_ROWS} more, which cost less: see ", h.code["lockstep costs"]]
        if len(rows) > MAX_ROWS
        else None,
        _budgets(found["budgets"]),
    ]


def _moment(text: str) -> str:
    return f"{text}T00:00:00Z" if len(text) == len("2026-01-31") else text


def _bars(rows: Sequence[Mapping[str, Any]]) -> list[Bar]:
    """Returns a bar for each day between the first and the last one with a cost."""
    costs = {row["name"]: float(row["costUsd"]) for row in rows}
    if not costs:
        return []
    last = date.fromisoformat(max(costs))
    num_days = min((last - date.fromisoformat(min(costs))).days + 1, MAX_BARS)
    days = [(last - timedelta(days=ago)).isoformat() for ago in reversed(range(num_days))]
    return [Bar(name=day, value=costs.get(day, 0.0)) for day in days]


def _waste(total: Mapping[str, Any]) -> h.Node:
    """Returns how much of the time of nodes and servers was for nothing."""
    shares = {name: amount for name, amount in total["nodes"].items() if Decimal(amount["seconds"])}
    whole = sum((Decimal(amount["seconds"]) for amount in shares.values()), Decimal(0))
    rows: list[tuple[h.Node, ...]] = [
        (
            f"nodes, {WASTE.get(name, name)}",
            duration(float(amount["seconds"])),
            _share(Decimal(amount["seconds"]), whole),
            f"${amount['costUsd']}",
        )
        for name, amount in shares.items()
    ]
    served, unused = Decimal(total["serverHours"]), Decimal(total["unusedServerHours"])
    if served:
        hours = duration(float(unused) * 3600)
        rows.append(("prediction servers, without requests", hours, _share(unused, served), f"${total['unusedUsd']}"))
    if not rows:
        return None
    return [
        h.h2["What the time was for"],
        table(("What", "Time", "Share", "Cost"), rows, label="What the time was for", numbers=(1, 2, 3)),
    ]


def _share(part: Decimal, whole: Decimal) -> str:
    return "< 1%" if 0 < part / whole < Decimal("0.005") else f"{part / whole:.0%}"


def _row(row: Mapping[str, Any], *, by: str, project: str) -> tuple[h.Node, ...]:
    return (
        _name(row["name"], by=by, project=project),
        row["machineHours"],
        row["mlUnits"],
        f"${row['costUsd']}",
        f"${row['owedUsd']}",
        f"${row['unusedUsd']}" if Decimal(row["unusedServerHours"]) else "",
        f"${row['storedUsd']}" if row["storedUsd"] is not None and Decimal(row["storedGibMonths"]) else "",
    )


def _name(name: str, *, by: str, project: str) -> h.Node:
    """Returns the name of a row, with a link to what it is. In a report of all projects, a job has no project."""
    if project == ALL_PROJECTS or name.startswith("("):
        return name
    if by == "job":
        model, separator, _ = name.partition("/")  # a prediction server has the names of its model and version
        return h.a(href=model_path(project, model) if separator else job_path(project, name))[name]
    if by in ("model", "version"):
        return h.a(href=model_path(project, name.partition("/")[0]))[name]
    return name


def _budgets(budgets: Sequence[Mapping[str, Any]]) -> h.Node:
    if not budgets:
        return None
    rows = [
        (
            budget["project"],
            budget["period"],
            f"${budget['spentUsd']}",
            f"${budget['limitUsd']}",
            used_strip(f"budget of {budget['project']} in {budget['period']}", part=_part(budget)),
            f"{budget['text']}{'; jobs wait at the limit' if budget['stopAtLimit'] else ''}",
        )
        for budget in budgets
    ]
    titles = ("Project", "Period", "Spent", "Limit", "Used", "")
    return [h.h2["Budgets"], table(titles, rows, label="Budgets", numbers=(2, 3))]


def _part(budget: Mapping[str, Any]) -> float:
    limit = Decimal(budget["limitUsd"])
    return float(Decimal(budget["spentUsd"]) / limit) if limit else 1.0
