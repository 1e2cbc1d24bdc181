"""Converts budgets to JSON. Amounts are decimal strings, to avoid the rounding of floats."""

from __future__ import annotations

from datetime import UTC, datetime

from lockstep.jobs.billing.bills import COST_DECIMALS, round_half_up
from lockstep.jobs.billing.budgets import of_limit, of_simulated
from lockstep.service.api.forms import BudgetForm
from lockstep.service.billing.spending import BudgetState


def budget_form(state: BudgetState) -> BudgetForm:
    """Returns the state of a budget as JSON."""
    budget, limit = state.budget, state.budget.usd[state.period]
    usd = state.spent.usd(counts_simulated=budget.count_simulated)
    name = state.period.name_of(state.time_s)
    return {
        "project": state.project,
        "period": name,
        "limitUsd": f"{limit:f}",
        "spentUsd": str(round_half_up(usd, decimals=COST_DECIMALS)),
        "stopAtLimit": budget.stop_at_limit,
        "alertShares": [f"{share:f}" for share in budget.spent_shares(usd, limit=limit)],
        "unpriced": list(state.spent.unpriced),
        "time": datetime.fromtimestamp(state.time_s, tz=UTC).isoformat(timespec="seconds"),
        "text": f"{of_limit(usd, limit=limit)} in {name} (UTC)"
        + of_simulated(state.spent, counts_simulated=budget.count_simulated),
    }
