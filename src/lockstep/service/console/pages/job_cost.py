"""What a job costs as it builds up: its attempts, and the nodes that it had."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import htpy as h

from lockstep.service.console.layout import duration, table, when
from lockstep.service.console.pages.costs import WASTE


def cost_section(job: Mapping[str, Any]) -> h.Node:
    """Returns the cost of a job by attempt, and that of its nodes by what their time was for; None before it has run.

    Args:
        job: the job, as the REST interface returns it.
    """
    own = job["lockstep"]
    attempts, nodes = own["attempts"] or [], own["nodes"]
    if not attempts and nodes is None:
        return None
    total = Decimal(0)
    rows: list[tuple[h.Node, ...]] = []
    for attempt in attempts:
        total += Decimal(attempt["costUsd"] or 0)
        rows.append(
            (
                str(attempt["attempt"]),
                when(attempt["startTime"]),
                when(attempt["endTime"]),
                duration(float(attempt["machineSeconds"])),
                attempt["mlUnits"] or "unpriced",
                "unpriced" if attempt["costUsd"] is None else f"${attempt['costUsd']}",
                f"${total}",
                attempt["endReason"] or "",
            )
        )
    titles = ("Attempt", "Start", "End", "Machine time", "ML units", "Cost", "So far", "End reason")
    return h.section("#cost")[
        h.h2["Cost"],
        table(titles, rows, label="Cost by attempt", numbers=(3, 4, 5, 6)) if rows else None,
        None if nodes is None else _nodes(nodes),
    ]


def _nodes(nodes: Mapping[str, Any]) -> h.Node:
    rows = [
        (WASTE.get(name, name), duration(float(amount["seconds"])), f"${amount['costUsd']}")
        for name, amount in nodes["shares"].items()
        if Decimal(amount["seconds"])
    ]
    if not rows:
        return None
    return [
        h.h3["Its nodes"],
        table(("What their time was for", "Time", "Cost"), rows, label="Cost of nodes", numbers=(1, 2)),
        h.p(".muted")[nodes["note"]],
    ]
