"""What a model does: requests, errors and latencies over time, its prediction servers, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final
from urllib.parse import urlencode

import htpy as h
from starlette.requests import Request

from lockstep.errors import NotFoundError
from lockstep.service.api.billing import costs as costs_api
from lockstep.service.api.prediction import models as models_api
from lockstep.service.api.prediction import watching as watching_api
from lockstep.service.api.telemetry import metrics as metrics_api
from lockstep.service.console.calls import call
from lockstep.service.console.charts import Line, chart, number
from lockstep.service.console.layout import elapsed, model_path, state_badge, table, when
from lockstep.service.console.pages.model_versions import short_name
from lockstep.service.console.signing_in import Session
from lockstep.service.context import ServiceContext

REQUESTS_LIVE: Final = "every 10s"
SERVERS_LIVE: Final = "every 5s"
MAX_VERSIONS: Final = 8
"""The most versions with lines of their own, the newest first."""
MAX_SERIES_SERVERS: Final = 4
"""The most servers whose machines are drawn."""
COST_DAYS: Final = 30


def later_part(name: str, *, path: str, title: str, without: h.Node) -> h.Element:
    """Returns a part of a page that is asked for when the page is shown, because it takes longer.

    Args:
        name: the id of the part, which what is asked for has, too.
        path: what is asked for.
        title: the title.
        without: what is shown until then, and to browsers without scripts.
    """
    return h.section(id=name, hx_get=path, hx_trigger="load")[h.h2[title], h.p[without]]


def requests_section(
    session: Session, context: ServiceContext, *, project: str, model: str, versions: Sequence[str]
) -> h.Element:
    """Returns charts of the requests that this service has answered, with a line for each version.

    Args:
        session: the session of the reader.
        context: the parts of the service.
        project: the project.
        model: the model.
        versions: the names of its versions, the newest first.
    """
    lines: dict[str, list[Line]] = {"rate": [], "errors": [], "latency": []}
    rows: list[tuple[h.Node, ...]] = []
    since = ""
    for version in versions[:MAX_VERSIONS]:
        try:
            found = call(
                watching_api.version_requests,
                session.principal,
                context,
                project=project,
                model=model,
                version=version,
            )
        except NotFoundError:  # deleted meanwhile
            continue
        since, minutes = found["sinceTime"], found["minutes"]
        if not minutes:
            continue
        interval_s = found["intervalSeconds"]
        drawn = _with_pauses(minutes, interval_s=interval_s)
        lines["rate"].append(Line(name=version, points=[(m["time"], m["requests"] / interval_s) for m in drawn]))
        lines["errors"].append(Line(name=version, points=[(m["time"], m["errors"] / interval_s) for m in drawn]))
        slow = [(m["time"], m["meanLatencySeconds"] * 1000) for m in minutes]
        lines["latency"].append(Line(name=version, points=slow))
        rows.append(_request_row(version, minutes))
    titles = ("Version", "Requests", "Errors", "Mean latency", "Last request")
    return h.section("#requests", hx_get=f"{model_path(project, model)}/requests", hx_trigger=REQUESTS_LIVE)[
        h.h2["Requests"],
        [
            h.div(".charts")[
                chart("Requests", unit="per second", lines=lines["rate"]),
                chart("Errors", unit="per second", lines=lines["errors"]),
                chart("Latency", unit="ms, the mean of a minute", lines=lines["latency"]),
            ],
            table(titles, rows, label="Requests by version", numbers=(1, 2, 3)),
        ]
        if rows
        else None,
        h.p(".muted")[
            "Minutes with requests that this service has answered, 120 at most for each version, since ",
            when(since),
            ".",
        ]
        if since
        else h.p(".muted")["There is no version that could be asked."],
    ]


def _with_pauses(minutes: Sequence[dict[str, Any]], *, interval_s: float) -> list[dict[str, Any]]:
    """Returns the minutes with those around pauses, in which there was no request: a line falls to 0 there."""
    drawn: list[dict[str, Any]] = []
    for minute in minutes:
        if drawn and minute["time"] - drawn[-1]["time"] > interval_s:
            drawn.append({"time": drawn[-1]["time"] + interval_s, "requests": 0, "errors": 0})
            if minute["time"] - drawn[-1]["time"] > interval_s:
                drawn.append({"time": minute["time"] - interval_s, "requests": 0, "errors": 0})
        drawn.append(minute)
    return drawn


def _request_row(version: str, minutes: Sequence[dict[str, Any]]) -> tuple[h.Node, ...]:
    total = sum(minute["requests"] for minute in minutes)
    latency_s = sum(minute["requests"] * minute["meanLatencySeconds"] for minute in minutes)
    last = datetime.fromtimestamp(minutes[-1]["time"], tz=UTC).isoformat().replace("+00:00", "Z")
    errors = sum(minute["errors"] for minute in minutes)
    return version, f"{total:,}", f"{errors:,}", f"{number(latency_s / total * 1000)} ms", when(last)


def show_requests(request: Request, session: Session, context: ServiceContext) -> h.Element:
    """Returns the part of a model's page with its requests."""
    names = _names(request)
    return requests_section(session, context, **names, versions=_versions(session, context, **names))


def servers_section(
    session: Session, context: ServiceContext, *, project: str, model: str, versions: Sequence[str]
) -> h.Element:
    """Returns the prediction servers of a model, with links to their logs, and what their machines do.

    Args:
        session: the session of the reader.
        context: the parts of the service.
        project: the project.
        model: the model.
        versions: the names of its versions, the newest first.
    """
    rows: list[tuple[h.Node, ...]] = []
    asked: list[str] = []
    for version in versions[:MAX_VERSIONS]:
        where = {"project": project, "model": model, "version": version}
        try:
            found = call(watching_api.list_servers, session.principal, context, **where)
        except NotFoundError:  # deleted meanwhile
            continue
        rows.extend(_server_row(server, **where) for server in found["servers"])
        if found["servers"]:
            asked.append(version)
    titles = ("Server", "Version", "State", "Host", "Running for", "Restarts", "Waits for", "Log")
    return h.section("#servers", hx_get=f"{model_path(project, model)}/servers", hx_trigger=SERVERS_LIVE)[
        h.h2["Prediction servers"],
        table(titles, rows, label="Prediction servers", numbers=(5,)) if rows else h.p(".muted")["There are none."],
        _machine_charts(session, context, project=project, model=model, versions=asked),
    ]


def _server_row(server: dict[str, Any], *, project: str, model: str, version: str) -> tuple[h.Node, ...]:
    log = f"{model_path(project, model)}/versions/{version}/log?{urlencode({'server': server['name']})}"
    state = "READY" if server["ready"] else server["state"]
    return (
        h.code[server["name"]],
        version,
        [state_badge(state), " (draining)" if server["draining"] else ""],
        server["host"] or "-",
        elapsed(server["startTime"], None),
        server["numRestarts"] or "",
        server["waitingFor"] or "",
        h.a(href=log)["Log"],
    )


def _machine_charts(
    session: Session, context: ServiceContext, *, project: str, model: str, versions: Sequence[str]
) -> h.Node:
    """Returns the processors and the memory of the servers over time, the first server of each version."""
    lines: dict[tuple[str, str], list[Line]] = {}
    for version in versions[:MAX_SERIES_SERVERS]:
        try:
            found = call(
                metrics_api.version_metrics,
                session.principal,
                context,
                project=project,
                model=model,
                version=version,
                name=["cpuCores", "memoryBytes", "gpuUtilization"],
            )
        except NotFoundError:  # it has had no server yet
            continue
        for series in found["series"]:
            name = f"{version}/{series['server']}"
            lines.setdefault((series["name"], series["unit"]), []).append(Line(name=name, points=series["points"]))
    if not lines:
        return None
    return h.div(".charts")[(chart(name, unit=unit, lines=drawn) for (name, unit), drawn in lines.items())]


def show_servers(request: Request, session: Session, context: ServiceContext) -> h.Element:
    """Returns the part of a model's page with its prediction servers."""
    names = _names(request)
    return servers_section(session, context, **names, versions=_versions(session, context, **names))


def show_cost(request: Request, session: Session, context: ServiceContext) -> h.Element:
    """Returns the part of a model's page with what its versions have cost."""
    names = _names(request)
    call(models_api.get_model, session.principal, context, **names)
    since = datetime.now(tz=UTC) - timedelta(days=COST_DAYS)
    found = call(
        costs_api.costs, session.principal, context, project=names["project"], by="version", since=since.isoformat()
    )
    own = [row for row in found["rows"] if row["name"].startswith(f"{names['model']}/")]
    own.sort(key=lambda row: Decimal(row["costUsd"]), reverse=True)
    total = sum((Decimal(row["costUsd"]) for row in own), Decimal(0))
    rows = [
        (
            row["name"].partition("/")[2],
            row["serverHours"],
            f"${row['costUsd']}",
            f"${row['unusedUsd']}",
        )
        for row in own
    ]
    return h.section("#cost")[
        h.h2["Cost"],
        h.p[h.strong[f"${total}"], f" at list prices in the last {COST_DAYS} days"],
        table(("Version", "Server hours", "Cost", "Without requests"), rows, label="Costs", numbers=(1, 2, 3))
        if rows
        else h.p(".muted")["Nothing was spent."],
    ]


def _names(request: Request) -> dict[str, str]:
    return {name: request.path_params[name] for name in ("project", "model")}


def _versions(session: Session, context: ServiceContext, *, project: str, model: str) -> list[str]:
    found = call(
        models_api.list_versions, session.principal, context, project=project, model=model, page_size=MAX_VERSIONS
    )
    return [short_name(version) for version in found["versions"]]
