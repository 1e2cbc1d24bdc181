"""The machines: which there are, since when, and why one failed."""

from __future__ import annotations

from typing import Final

import htpy as h
from starlette.requests import Request

from lockstep.service.api import system
from lockstep.service.api.control import nodes as nodes_api
from lockstep.service.console.calls import call
from lockstep.service.console.layout import facts, page, state_badge, table, when
from lockstep.service.console.signing_in import Session
from lockstep.service.context import ServiceContext

TITLES: Final = ("Node", "Type", "Machine", "State", "Requested", "Ready", "Released", "Reason")


def show(_request: Request, session: Session, context: ServiceContext) -> h.Element:
    """Returns the page."""
    found = call(nodes_api.nodes, session.principal, context)
    service = call(system.service, session.principal, context)
    rows = [
        (
            node["name"],
            node["nodeType"],
            node["machine"],
            state_badge(node["state"]),
            when(node["askedTime"]),
            when(node["readyTime"]),
            when(node["releasedTime"]),
            node["reason"],
        )
        for node in found["nodes"]
    ]
    jobs = service["jobs"] or {}
    return page(
        facts(
            [
                ("Engine", service["engine"]["engine"]),
                ("Cluster", found["cluster"] or "a fixed set of nodes"),
                ("Jobs", ", ".join(f"{number} {state.lower()}" for state, number in jobs.items()) or "none"),
            ]
        ),
        h.h2["Nodes"],
        table(TITLES, rows, label="Nodes")
        if rows
        else h.p(".muted")["No machines are requested and released here: see ", h.code["lockstep cluster use"], "."],
        title="Cluster",
        session=session,
        path="/cluster",
    )
