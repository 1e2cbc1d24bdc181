"""The machines: which there are, who uses them, what they cost; those that ended; the queue and the quotas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import htpy as h
from starlette.requests import Request

from lockstep.service.api import system
from lockstep.service.api.control import nodes as nodes_api
from lockstep.service.api.control import queue as queue_api
from lockstep.service.console.bars import used_strip
from lockstep.service.console.calls import call
from lockstep.service.console.layout import (
    elapsed,
    facts,
    job_path,
    model_path,
    page,
    state_badge,
    table,
    when,
    with_query,
)
from lockstep.service.console.signing_in import Session
from lockstep.service.context import ServiceContext

LIVE: Final = "every 5s"
MAX_NODES: Final = 200
"""The most nodes that are shown one by one. The table by type counts all of them."""
MAX_USES: Final = 5
QUEUE_SIZE: Final = 50
PAGE_SIZE: Final = 50
TITLES: Final = ("Node", "Type", "Machine", "State", "Used by", "Idle since", "Price an hour", "Requested", "Reason")
ENDED: Final = ("Node", "Type", "Machine", "Requested", "Ready", "Down", "There for", "Price an hour", "Reason")


def show(request: Request, session: Session, context: ServiceContext) -> h.Element:
    """Returns the page."""
    service = call(system.service, session.principal, context)
    jobs = service["jobs"] or {}
    return page(
        facts(
            [
                ("Engine", service["engine"]["engine"]),
                ("Jobs", ", ".join(f"{number} {state.lower()}" for state, number in jobs.items()) or "none"),
            ]
        ),
        _now(session, context, first=request.query_params.get("queue", "")),
        title="Cluster",
        session=session,
        path="/cluster",
    )


def show_now(request: Request, session: Session, context: ServiceContext) -> h.Element:
    """Returns the part of the page that is live."""
    return _now(session, context, first=request.query_params.get("queue", ""))


def _now(session: Session, context: ServiceContext, *, first: str) -> h.Element:
    found = call(nodes_api.nodes, session.principal, context)
    queue = call(queue_api.queue, session.principal, context, page_size=QUEUE_SIZE, page_token=first)
    path = with_query("/cluster/now", {"queue": first})
    return h.section("#now", hx_get=path, hx_trigger=LIVE)[
        h.h2["Nodes"],
        _engine_nodes(found["engineNodes"]) if found["cluster"] is None else _nodes(found),
        h.h2["Queue"],
        _queue(queue, first=first),
        h.h2["Quotas"],
        _quotas(queue["quotas"]),
    ]


def _nodes(found: Mapping[str, Any]) -> h.Node:
    nodes = found["nodes"]
    rows = [
        (
            node["name"],
            node["nodeType"],
            f"{node['machine']} (simulated)" if node["simulated"] else node["machine"],
            state_badge(node["state"]),
            _uses(node["usedBy"]),
            when(node["idleTime"]),
            _price(node),
            when(node["askedTime"]),
            node["reason"],
        )
        for node in nodes[:MAX_NODES]
    ]
    return [
        h.p[
            f"Cluster {found['cluster']}: machines are requested and released with the queue. ",
            h.a(href="/cluster/ended")["Nodes that ended"],
        ],
        _by_type(nodes) if nodes else None,
        table(TITLES, rows, label="Nodes", numbers=(6,))
        if rows
        else h.p(".muted")["No machine is there or requested."],
        h.p(".muted")[f"and {len(nodes) - MAX_NODES} more: see ", h.code["lockstep cluster nodes"]]
        if len(nodes) > MAX_NODES
        else None,
    ]


def _by_type(nodes: Sequence[Mapping[str, Any]]) -> h.Element:
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for node in nodes:
        kinds.setdefault(node["nodeType"], []).append(node)
    rows: list[tuple[h.Node, ...]] = []
    for kind, found in sorted(kinds.items()):
        states = Counter(node["state"] for node in found)
        idle = [node for node in found if node["idleTime"] is not None and node["state"] == "ready"]
        paid = [node for node in found if node["upTime"] is not None and not node["simulated"]]
        hour = sum((Decimal(node["usdPerHour"]) for node in paid if node["usdPerHour"] is not None), Decimal(0))
        rows.append(
            (
                kind,
                found[0]["machine"],
                ", ".join(f"{number} {state}" for state, number in states.items()),
                str(len(idle)),
                f"${hour:.2f}",
            )
        )
    titles = ("Type", "Machine", "Nodes", "Idle", "Owed an hour")
    return table(titles, rows, label="Nodes by type", numbers=(3, 4))


def _engine_nodes(nodes: Sequence[Mapping[str, Any]]) -> h.Node:
    rows = [
        (
            node["name"],
            node["nodeType"],
            state_badge("ready" if node["up"] else "down"),
            ", ".join(f"{amount:,} {name}" for name, amount in node["resources"].items()) or "-",
            _uses(node["usedBy"]),
        )
        for node in nodes[:MAX_NODES]
    ]
    return [
        h.p(".muted")[
            "A fixed set of nodes. To have machines requested and released: ", h.code["lockstep cluster use"], "."
        ],
        table(("Node", "Type", "State", "Has", "Used by"), rows, label="Nodes")
        if rows
        else h.p["The engine has no nodes, or does not answer."],
    ]


def _uses(uses: Sequence[Mapping[str, str]]) -> h.Node:
    if not uses:
        return "-"
    shown: list[h.Node] = []
    for use in uses[:MAX_USES]:
        if use["kind"] == "server":
            model, _, server = use["jobId"].partition("/")
            link = h.a(href=model_path(use["project"], model))[f"server {model}/{server}"]
        else:
            link = h.a(href=job_path(use["project"], use["jobId"]))[use["jobId"]]
        shown.append(h.li[link, f" ({use['project']}, {use['replica']})"])
    more = len(uses) - MAX_USES
    return h.ul(".plain")[shown, h.li(".muted")[f"and {more} more"] if more > 0 else None]


def _price(node: Mapping[str, Any]) -> h.Node:
    price = node["usdPerHour"]
    return "-" if price is None else h.span(title=node["priceSource"])[f"${Decimal(price):.4f}"]


def _queue(queue: Mapping[str, Any], *, first: str) -> h.Node:
    rows = [
        (
            str(job["position"]),
            h.a(href=job_path(job["project"], job["jobId"]))[job["jobId"]]
            if job["kind"] == "training"
            else f"server {job['jobId']}",
            job["project"],
            str(job["priority"]),
            when(job["createTime"]),
            job["reason"],
            when(job["startByTime"]),
        )
        for job in queue["jobs"]
    ]
    titles = ("Position", "Job", "Project", "Priority", "Submitted", "Waits for", "Starts by")
    following = queue.get("nextPageToken")
    return [
        table(titles, rows, label="Queue", numbers=(0, 3)) if rows else h.p(".muted")["Nothing waits."],
        h.p(".bar")[
            h.a(".button", href="/cluster")["First"] if first else None,
            h.a(".button", href=f"/cluster?queue={following}")["Next"] if following else None,
            f"{queue['numQueued']} in the queue",
        ]
        if first or following
        else None,
    ]


def _quotas(quotas: Sequence[Mapping[str, Any]]) -> h.Node:
    rows: list[tuple[h.Node, ...]] = []
    for quota in quotas:
        limit = quota["machinesLimit"]
        rows.append((quota["project"], "machines", *_used(quota["machinesInUse"], limit, what=quota["project"])))
        kinds = {**dict.fromkeys(quota["acceleratorsLimit"], 0), **quota["acceleratorsInUse"]}
        for kind, used in kinds.items():
            rows.append((quota["project"], kind, *_used(used, quota["acceleratorsLimit"].get(kind), what=kind)))
        if quota["dollarsPerDay"] is not None:
            limit_usd = f"${quota['dollarsPerDay']}"
            rows.append((quota["project"], "dollars a day", "", limit_usd, quota["heldReason"] or ""))
        elif quota["heldReason"]:
            rows.append((quota["project"], "budget", "", "", quota["heldReason"]))
        if quota["requestsPerSecond"] is not None:
            rate = f"{quota['requestsPerSecond']:g}"
            rows.append((quota["project"], "requests for predictions a second", "", rate, ""))
    if not rows:
        return h.p(".muted")["No project runs anything, or has a quota."]
    return table(("Project", "What", "In use", "Limit", "Held back"), rows, label="Quotas", numbers=(2, 3))


def _used(used: int, limit: int | None, *, what: str) -> tuple[h.Node, ...]:
    if limit is None:
        return str(used), "none", ""
    return str(used), str(limit), used_strip(what, part=used / limit if limit else 1.0, is_bad_when_full=False)


def show_ended(request: Request, session: Session, context: ServiceContext) -> h.Element:
    """Returns the page with the ledger of nodes that ended."""
    token = request.query_params.get("page", "")
    found = call(nodes_api.ended_nodes, session.principal, context, page_size=PAGE_SIZE, page_token=token)
    rows = [
        (
            node["name"],
            node["nodeType"],
            f"{node['machine']} (simulated)" if node["simulated"] else node["machine"],
            when(node["askedTime"]),
            when(node["readyTime"]),
            when(node["downTime"]),
            elapsed(node["upTime"], node["downTime"]),
            _price(node),
            node["reason"],
        )
        for node in found["nodes"]
    ]
    following = found.get("nextPageToken")
    return page(
        h.p[h.a(href="/cluster")["Cluster"]],
        table(ENDED, rows, label="Nodes that ended", numbers=(7,)) if rows else h.p(".muted")["No node has ended."],
        h.p(".bar")[
            h.a(".button", href="/cluster/ended")["Newest"] if token else None,
            h.a(".button", href=with_query("/cluster/ended", {"page": following}))["Older"] if following else None,
        ],
        title="Nodes that ended",
        session=session,
        path="/cluster",
    )
