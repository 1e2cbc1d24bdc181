"""The forms of costs."""

from __future__ import annotations

from pydantic import with_config
from typing_extensions import TypedDict

from lockstep.service.api.forms.answers import STRICT


@with_config(STRICT)
class BillForm(TypedDict):
    """The bill of a job, with amounts as decimal strings."""

    mlUnits: str | None
    costUsd: str | None
    note: str
    unpriced: list[str]
    sources: list[str]
    text: str


@with_config(STRICT)
class AmountForm(TypedDict):
    """The time and cost of one share of nodes' time."""

    seconds: str
    costUsd: str


@with_config(STRICT)
class NodeCostsForm(TypedDict):
    """The cost of a job's nodes, by share of their time."""

    shares: dict[str, AmountForm]
    sources: list[str]
    unpriced: list[str]
    note: str
    text: str


@with_config(STRICT)
class BudgetForm(TypedDict):
    """The state of a project's budget for a period, with amounts as decimal strings."""

    project: str
    period: str
    limitUsd: str
    spentUsd: str
    stopAtLimit: bool
    alertShares: list[str]
    unpriced: list[str]
    time: str
    text: str
