"""Converts the costs of nodes to JSON. Amounts are decimal strings, to avoid the rounding of floats."""

from __future__ import annotations

from typing import Final

from lockstep.jobs.billing.costs import CostRow
from lockstep.jobs.billing.node_costs import NodeShare
from lockstep.service.api.forms import AmountForm, NodeCostsForm
from lockstep.service.billing.accounting import NodeCosts

NODES_SIMULATED: Final = "simulated, nothing owed"


def node_costs_form(costs: NodeCosts) -> NodeCostsForm:
    """Returns the costs of a job's nodes as JSON."""
    row = costs.row
    parts = [
        f"{share.value} {amount.length_s} s ${amount.cost_usd}"
        for share, amount in row.nodes.items()
        if amount.length_s
    ]
    note = f"{'; '.join(row.sources) or 'no price'}{f'; {NODES_SIMULATED}' if costs.simulated else ''}"
    return {
        "shares": {share.value: amount_form(row, share) for share in NodeShare},
        "sources": list(row.sources),
        "unpriced": list(row.unpriced),
        "note": note,
        "text": ", ".join(parts) + (f", unpriced: {', '.join(row.unpriced)}" if row.unpriced else ""),
    }


def amount_form(row: CostRow, share: NodeShare) -> AmountForm:
    """Returns the length and cost of one share of nodes' time as JSON."""
    amount = row.nodes[share]
    return {"seconds": str(amount.length_s), "costUsd": str(amount.cost_usd)}
