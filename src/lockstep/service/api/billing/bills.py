"""Converts bills to JSON."""

from __future__ import annotations

from typing import Final

from lockstep.jobs.billing.bills import Bill
from lockstep.service.api.forms import BillForm

LIST_PRICE: Final = "list price"
NOTHING_OWED: Final = "simulated machines, nothing owed"


def bill_form(charged: Bill, *, simulated: bool) -> BillForm:
    """Returns a bill as JSON. Amounts are decimal strings, to avoid the rounding of floats."""
    prices = f"prices: {', '.join(charged.sources)}" if charged.has_own_prices else LIST_PRICE
    return {
        "mlUnits": None if charged.ml_units is None else str(charged.ml_units),
        "costUsd": None if charged.cost_usd is None else str(charged.cost_usd),
        "note": f"{prices}, {NOTHING_OWED}" if simulated else prices,
        "unpriced": list(charged.unpriced),
        "sources": list(charged.sources),
        "text": charged.describe(),
    }
