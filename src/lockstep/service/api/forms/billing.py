"""What things cost."""

from __future__ import annotations

from pydantic import with_config
from typing_extensions import TypedDict

from lockstep.service.api.forms.answers import STRICT


@with_config(STRICT)
class BillForm(TypedDict):
    """What a job cost; amounts as decimal strings."""

    mlUnits: str | None
    costUsd: str | None
    note: str
    unpriced: list[str]
    sources: list[str]
    text: str


@with_config(STRICT)
class AmountForm(TypedDict):
    """One share of what nodes cost."""

    seconds: str
    costUsd: str


@with_config(STRICT)
class NodeCostsForm(TypedDict):
    """What a job's nodes cost."""

    shares: dict[str, AmountForm]
    sources: list[str]
    unpriced: list[str]
    note: str
    text: str


@with_config(STRICT)
class BudgetForm(TypedDict):
    """How a project's budget for a while is; amounts as decimal strings."""

    project: str
    period: str
    limitUsd: str
    spentUsd: str
    stopAtLimit: bool
    alertShares: list[str]
    unpriced: list[str]
    time: str
    text: str
