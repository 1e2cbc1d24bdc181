"""Budgets: how much a project may spend in a day or a month (UTC), when to alert, and what happens at the limit.

The functions of this module receive the amounts that were spent; they do not compute them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from typing import Annotated, Final, Self, final

from pydantic import BeforeValidator, Field, model_validator

from lockstep.jobs.billing.bills import round_half_up
from lockstep.jobs.billing.days import day_name, day_start_s, month_start_s, next_day_s, next_month_s
from lockstep.jobs.billing.spending import Spent
from lockstep.jobs.parsing.fields import AbstractDocument, Dollars, Flag, rule_error
from lockstep.jobs.parsing.project_files import parse_projects
from lockstep.jobs.parsing.rules import Violation, raise_violations
from lockstep.jobs.scheduling import Quota

DEFAULT_SHARES: Final = (Decimal("0.5"), Decimal("0.9"), Decimal(1))
MAX_SHARE: Final = 100
SHARE_DECIMALS: Final = 4
CENT_DECIMALS: Final = 2


@final
class Period(StrEnum):
    """The period of a limit."""

    DAY = "day"
    MONTH = "month"

    def name_of(self, time_s: float) -> str:
        """Returns the name of the day or month of a time, such as ``2026-11-22`` or ``2026-11``."""
        day = day_name(time_s)
        return day if self is Period.DAY else day[: len("2026-11")]

    def start_s(self, time_s: float) -> float:
        """Returns the start of the day or month of a time, in seconds since 1970 UTC."""
        return day_start_s(time_s) if self is Period.DAY else month_start_s(time_s)

    def next_s(self, time_s: float) -> float:
        """Returns the start of the next day or month after a time, in seconds since 1970 UTC."""
        return next_day_s(time_s) if self is Period.DAY else next_month_s(time_s)


SpentIn = Callable[[Period], Spent]
"""Returns what a project has spent in the present day or month."""


@final
@dataclass(frozen=True, kw_only=True)
class Budget:
    """The limits of one project.

    Attributes:
        usd: the limits in US dollars, by period.
        alert_shares: the fractions of a limit at which an alert is raised, once in each period.
        stop_at_limit: whether no job starts once a limit is spent, until the next period.
        count_simulated: whether the list price of simulated machines counts, although it is not owed.
    """

    usd: Mapping[Period, Decimal]
    alert_shares: tuple[Decimal, ...] = DEFAULT_SHARES
    stop_at_limit: bool = False
    count_simulated: bool = False

    def spent_shares(self, usd: Fraction, *, limit: Decimal) -> list[Decimal]:
        """Returns the fractions of `alert_shares` that are reached; none while nothing is spent.

        Args:
            usd: the amount that is spent, in US dollars.
            limit: one of the limits.
        """
        return [share for share in self.alert_shares if usd > 0 and usd >= Fraction(share) * Fraction(limit)]

    def refuses(self, project: str) -> str | None:
        """Returns why no job of a project could ever start; None if one could."""
        if self.stop_at_limit:
            for period, limit in self.usd.items():
                if limit == 0:
                    return f"budget of project {project}: $0.00 a {period} is allowed"
        return None


def _read_share(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_SHARE:
        raise rule_error(allowed=f"numbers above 0 and at most {MAX_SHARE}, such as 0.9")
    share = Decimal(str(value)).normalize()
    if share != round(share, SHARE_DECIMALS):  # alerts are recorded by the digits of the share
        raise rule_error(allowed=f"numbers with at most {SHARE_DECIMALS} decimals, such as 0.9")
    return share


@final
class _ProjectBudget(AbstractDocument):
    dollars_per_day: Dollars | None = None
    dollars_per_month: Dollars | None = None
    alert_shares: tuple[Annotated[Decimal, BeforeValidator(_read_share)], ...] = Field(
        default=DEFAULT_SHARES, max_length=16
    )
    stop_at_limit: Flag = False
    count_simulated: Flag = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.dollars_per_day is None and self.dollars_per_month is None:
            raise_violations([Violation(path=("dollarsPerDay",), allowed="dollarsPerDay, dollarsPerMonth, or both")])
        return self


def parse_budgets(document: object, *, source: str) -> dict[str, Budget]:
    """Parses a budget file: ``projects`` by name, each with its limits and options.

    Args:
        document: the parsed YAML.
        source: the name of the file, for error messages.

    Raises:
        ConfigError: If the document has an unknown key or a wrong type.
    """
    return {
        project: Budget(
            usd={
                period: usd
                for period, usd in ((Period.DAY, budget.dollars_per_day), (Period.MONTH, budget.dollars_per_month))
                if usd is not None
            },
            alert_shares=tuple(sorted(set(budget.alert_shares))),
            stop_at_limit=budget.stop_at_limit,
            count_simulated=budget.count_simulated,
        )
        for project, budget in parse_projects(_ProjectBudget, document=document, source=source).items()
    }


@final
@dataclass(frozen=True, kw_only=True)
class Alert:
    """An alert: a share of a limit is spent.

    Attributes:
        project: the project that has the budget.
        period: the day or the month (UTC), such as ``2026-11-22`` or ``2026-11``.
        share: the share, as a decimal such as "0.9".
        limit_usd: the limit in US dollars, as a decimal.
    """

    project: str
    period: str
    share: str
    limit_usd: str


def alerts_due(budget: Budget, *, project: str, spent: SpentIn, now_s: float) -> Iterator[tuple[Alert, str]]:
    """Yields all alerts that are due in the present periods, each with its message, including alerts raised before.

    Args:
        budget: the budget.
        project: the project that has the budget.
        spent: what the project has spent.
        now_s: the present time, in seconds since 1970 UTC.
    """
    for period, limit in budget.usd.items():
        found = spent(period)
        usd = found.usd(counts_simulated=budget.count_simulated)
        words = _words("budget", project, period, limit, found, counts_simulated=budget.count_simulated)
        for share in budget.spent_shares(usd, limit=limit):
            alert = Alert(project=project, period=period.name_of(now_s), share=f"{share:f}", limit_usd=f"{limit:f}")
            yield alert, f"{(share * 100).normalize():f}% of a {words} ({alert.period}, UTC)"


def why_held(*, project: str, budget: Budget | None, quota: Quota | None, spent: SpentIn, now_s: float) -> str | None:
    """Returns why no job of a project may start now; None if one may.

    Args:
        project: the project.
        budget: its budget, if it has one.
        quota: its quota, if it has one.
        spent: what the project has spent.
        now_s: the present time, in seconds since 1970 UTC.
    """
    limits: list[tuple[str, Period, Decimal, bool]] = []
    if quota is not None and quota.dollars_per_day is not None:
        limits.append(("quota", Period.DAY, quota.dollars_per_day, True))
    if budget is not None and budget.stop_at_limit:
        limits.extend(("budget", period, limit, budget.count_simulated) for period, limit in budget.usd.items())
    # The longest period comes first: whoever waits for it waits for the others too.
    for what, period, limit, counts_simulated in sorted(limits, key=lambda entry: entry[1] is Period.DAY):
        found = spent(period)
        if found.usd(counts_simulated=counts_simulated) >= Fraction(limit):
            words = _words(what, project, period, limit, found, counts_simulated=counts_simulated)
            until = datetime.fromtimestamp(period.next_s(now_s), tz=UTC).strftime("%Y-%m-%d %H:%M")
            return f"{words}; the next {period} begins at {until} UTC"
    return None


def of_limit(usd: Fraction, *, limit: Decimal) -> str:
    """Returns what is spent of a limit in words: "$41.20 of $40.00", in cents or in the limit's decimals (half up)."""
    exponent = limit.as_tuple().exponent
    decimals = max(CENT_DECIMALS, -exponent if isinstance(exponent, int) else 0)
    return " of ".join(f"${round_half_up(amount, decimals=decimals)}" for amount in (usd, Fraction(limit)))


def of_simulated(spent: Spent, *, counts_simulated: bool) -> str:
    """Returns words that say that simulated machines are counted; "" if none is."""
    return ", simulated machines counted" if counts_simulated and spent.simulated_usd else ""


def _words(what: str, project: str, period: Period, limit: Decimal, spent: Spent, *, counts_simulated: bool) -> str:
    usd = of_limit(spent.usd(counts_simulated=counts_simulated), limit=limit)
    simulated = of_simulated(spent, counts_simulated=counts_simulated)
    return f"{what} of project {project}: {usd} a {period} is spent{simulated}"
