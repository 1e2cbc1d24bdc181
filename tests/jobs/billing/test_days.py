"""Days and months by UTC."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from lockstep.jobs.billing.bills import ReplicaUsage
from lockstep.jobs.billing.budgets import Period
from lockstep.jobs.billing.days import cut_usage, day_name


def _s(*time: int) -> float:
    return datetime(*time, tzinfo=UTC).timestamp()  # type: ignore[misc]


@pytest.mark.parametrize(
    ("period", "time_s", "name", "start_s", "next_s"),
    [
        pytest.param(Period.DAY, _s(2026, 11, 22), "2026-11-22", _s(2026, 11, 22), _s(2026, 11, 23), id="midnight"),
        pytest.param(
            Period.DAY, _s(2026, 12, 31, 23, 59, 59), "2026-12-31", _s(2026, 12, 31), _s(2027, 1, 1), id="last second"
        ),
        pytest.param(Period.MONTH, _s(2026, 12, 31, 5), "2026-12", _s(2026, 12, 1), _s(2027, 1, 1), id="December"),
        pytest.param(Period.MONTH, _s(2028, 2, 29), "2028-02", _s(2028, 2, 1), _s(2028, 3, 1), id="leap year"),
    ],
)
def test_periods_begin_and_end_by_utc(period: Period, time_s: float, name: str, start_s: float, next_s: float) -> None:
    assert (period.name_of(time_s), period.start_s(time_s), period.next_s(time_s)) == (name, start_s, next_s)


def test_an_interval_is_cut_at_each_midnight() -> None:
    whole = ReplicaUsage(
        replica="r", machine_type="n1-standard-4", start_time_s=_s(2026, 11, 21, 23), end_time_s=_s(2026, 11, 23, 1)
    )
    parts = list(cut_usage(whole, by_day=True))
    assert [(day_name(part.start_time_s), part.end_time_s - part.start_time_s) for part in parts] == [
        ("2026-11-21", 3600.0),
        ("2026-11-22", 86400.0),
        ("2026-11-23", 3600.0),
    ]
    [clipped] = cut_usage(whole, since_s=_s(2026, 11, 22, 1), until_s=_s(2026, 11, 22, 2), by_day=True)
    assert clipped.hours == 1
