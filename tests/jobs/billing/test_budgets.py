"""What projects may spend, when somebody is told, and what follows at the limit."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction

import pytest

from lockstep.errors import ConfigError
from lockstep.jobs.billing.budgets import (
    DEFAULT_SHARES,
    Budget,
    Period,
    SpentIn,
    alerts_due,
    of_limit,
    parse_budgets,
    why_held,
)
from lockstep.jobs.billing.spending import Spent
from lockstep.jobs.scheduling import Quota

NOW_S = datetime(2026, 11, 30, 23, 59, tzinfo=UTC).timestamp()


def spent(day: str = "0", month: str = "0", *, simulated: str = "0") -> SpentIn:
    figures = {Period.DAY: day, Period.MONTH: month}
    return lambda period: Spent(owed_usd=Fraction(figures[period]), simulated_usd=Fraction(simulated))


def daily(limit: str, **options: object) -> Budget:
    return Budget(usd={Period.DAY: Decimal(limit)}, **options)  # type: ignore[arg-type]


def held(found: SpentIn, *, budget: Budget | None = None, quota: Quota | None = None) -> str | None:
    return why_held(project="p", budget=budget, quota=quota, spent=found, now_s=NOW_S)


def test_a_file_says_limits_shares_and_what_follows() -> None:
    document = {
        "projects": {
            "a": {"dollarsPerDay": "40.00"},
            "b": {"dollarsPerMonth": "800", "alertShares": [1.0, 0.25, 0.25], "stopAtLimit": True},
            "c": {"dollarsPerDay": "1", "dollarsPerMonth": "9", "countSimulated": True},
        }
    }
    assert parse_budgets(document, source="budgets") == {
        "a": Budget(usd={Period.DAY: Decimal("40.00")}, alert_shares=DEFAULT_SHARES),
        "b": Budget(usd={Period.MONTH: Decimal(800)}, alert_shares=(Decimal("0.25"), Decimal(1)), stop_at_limit=True),
        "c": Budget(usd={Period.DAY: Decimal(1), Period.MONTH: Decimal(9)}, count_simulated=True),
    }


@pytest.mark.parametrize(
    ("budget", "error"),
    [
        pytest.param({"stopAtLimit": True}, "dollarsPerDay is missing; allowed: dollarsPerDay", id="no limit"),
        pytest.param({"dollarsPerDay": 40}, 'allowed: US dollars in quotes, such as "0.3800"', id="no quotes"),
        pytest.param({"dollarsPerDay": "40", "alertShares": [0]}, "numbers above 0", id="share of nothing"),
        pytest.param({"dollarsPerDay": "40", "alertShares": ["half"]}, "numbers above 0", id="share in words"),
        pytest.param({"dollarsPerDay": "40", "alertShares": [1 / 3]}, "at most 4 decimals", id="share without an end"),
        pytest.param({"dollarsPerWeek": "40"}, "unknown key projects.a.dollarsPerWeek", id="unknown key"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(budget: dict[str, object], error: str) -> None:
    with pytest.raises(ConfigError, match=r"projects\.a") as caught:
        parse_budgets({"projects": {"a": budget}}, source="budgets")
    assert error in str(caught.value)


def test_a_share_is_due_when_it_is_spent_to_the_cent() -> None:
    budget = daily("40.00")
    assert list(alerts_due(budget, project="p", spent=spent("19.999999"), now_s=NOW_S)) == []
    [(alert, text)] = alerts_due(budget, project="p", spent=spent("20"), now_s=NOW_S)
    assert (alert.project, alert.period, alert.share, alert.limit_usd) == ("p", "2026-11-30", "0.5", "40.00")
    assert text == "50% of a budget of project p: $20.00 of $40.00 a day is spent (2026-11-30, UTC)"
    assert [alert.share for alert, _ in alerts_due(budget, project="p", spent=spent("99"), now_s=NOW_S)] == [
        "0.5",
        "0.9",
        "1",
    ]


def test_a_share_is_told_as_it_was_asked_for() -> None:
    budget = daily("40.00", alert_shares=(Decimal("0.125"), Decimal("0.995"), Decimal("1"), Decimal("1.1")))
    told = [text.partition(" ")[0] for _, text in alerts_due(budget, project="p", spent=spent("44"), now_s=NOW_S)]
    assert told == ["12.5%", "99.5%", "100%", "110%"]


def test_of_a_budget_of_nothing_nobody_is_told_before_something_is_spent() -> None:
    assert list(alerts_due(daily("0"), project="p", spent=spent("0"), now_s=NOW_S)) == []
    assert len(list(alerts_due(daily("0"), project="p", spent=spent("0.01"), now_s=NOW_S))) == 3


def test_each_period_has_alerts_of_its_own() -> None:
    budget = Budget(usd={Period.DAY: Decimal(10), Period.MONTH: Decimal(100)}, alert_shares=(Decimal(1),))
    found = [alert.period for alert, _ in alerts_due(budget, project="p", spent=spent("10", "100"), now_s=NOW_S)]
    assert found == ["2026-11-30", "2026-11"]


def test_at_its_limit_a_budget_that_stops_lets_nothing_start() -> None:
    stops = daily("40.00", stop_at_limit=True)
    assert held(spent("39.999"), budget=stops) is None
    assert held(spent("41.204"), budget=stops) == (
        "budget of project p: $41.20 of $40.00 a day is spent; the next day begins at 2026-12-01 00:00 UTC"
    )
    assert held(spent("41.20"), budget=daily("40.00")) is None
    monthly = Budget(usd={Period.DAY: Decimal(1), Period.MONTH: Decimal(100)}, stop_at_limit=True)
    assert held(spent("100", "100"), budget=monthly) == (
        "budget of project p: $100.00 of $100.00 a month is spent; the next month begins at 2026-12-01 00:00 UTC"
    )


def test_a_quota_of_dollars_counts_simulated_machines_and_a_budget_only_if_it_says_so() -> None:
    simulated = spent(simulated="50")
    assert held(simulated, budget=daily("40", stop_at_limit=True)) is None
    assert held(simulated, budget=daily("40", stop_at_limit=True, count_simulated=True)) is not None
    assert held(simulated, quota=Quota(dollars_per_day=Decimal(40))) == (
        "quota of project p: $50.00 of $40.00 a day is spent, simulated machines counted; "
        "the next day begins at 2026-12-01 00:00 UTC"
    )
    assert held(simulated, quota=Quota(machines=3)) is None


def test_only_a_limit_of_nothing_refuses_a_job_for_good() -> None:
    assert daily("0", stop_at_limit=True).refuses("p") == "budget of project p: $0.00 a day is allowed"
    assert daily("0").refuses("p") is None
    assert daily("0.01", stop_at_limit=True).refuses("p") is None


def test_a_limit_of_less_than_a_cent_is_said_as_it_is_written() -> None:
    assert of_limit(Fraction("0.0019"), limit=Decimal("0.002")) == "$0.002 of $0.002"
    assert of_limit(Fraction("41.204"), limit=Decimal(40)) == "$41.20 of $40.00"
