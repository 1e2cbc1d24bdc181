"""What machines would have cost that are there all the time."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction

import pytest

from lockstep.jobs.billing.always_on import AlwaysOnMachines, MachineTime, always_on
from lockstep.jobs.billing.bills import ReplicaUsage
from lockstep.jobs.machines.catalogue import load_catalogue

NOON_S = datetime(2026, 11, 22, 12, tzinfo=UTC).timestamp()
HOUR_S = 3600.0
FOREVER_S = NOON_S + 1000 * HOUR_S


def there(start_h: float, end_h: float, *, kind: str = "box", node: str = "", usd: str | None = "2") -> MachineTime:
    start_s, end_s = (NOON_S + hours * HOUR_S for hours in (start_h, end_h))
    price = None if usd is None else Fraction(usd)
    return MachineTime(
        kind=kind, usd_per_hour=price, node=node, start_us=int(start_s * 10**6), end_us=int(end_s * 10**6)
    )


def of(*times: MachineTime, since_s: float = 0.0, until_s: float = FOREVER_S) -> list[AlwaysOnMachines]:
    found = always_on(times, since_s=since_s, until_s=until_s)
    assert found is not None
    return list(found.machines)


@pytest.mark.parametrize(
    ("times", "count"),
    [
        pytest.param([there(0, 1), there(1, 2), there(2, 3)], 1, id="one after the other"),
        pytest.param([there(0, 2), there(1, 3), there(1, 2), there(5, 6)], 3, id="at once"),
        pytest.param([there(0, 2, node="a"), there(1, 3, node="a")], 1, id="one node that is shared"),
        pytest.param([there(0, 2, node="a"), there(1, 3, node="b"), there(1, 2)], 3, id="nodes and a replica"),
    ],
)
def test_as_many_are_needed_as_there_were_at_once(times: list[MachineTime], count: int) -> None:
    assert of(*times) == [
        AlwaysOnMachines(kind="box", count=count, cost_usd=Decimal(count * 24 * 2).quantize(Decimal("0.0001")))
    ]


def test_days_are_whole_ones_but_for_what_lies_outside() -> None:
    night = there(-1, 13)  # into the next day
    found = always_on([night], since_s=0.0, until_s=FOREVER_S)
    assert found is not None
    assert (found.until_s - found.since_s, found.cost_usd) == (48 * HOUR_S, Decimal("96.0000"))
    found = always_on([night], since_s=NOON_S - HOUR_S, until_s=NOON_S + 13 * HOUR_S)
    assert found is not None
    assert found.cost_usd == Decimal("28.0000")
    until_midnight = always_on([there(0, 12)], since_s=0.0, until_s=FOREVER_S)
    assert until_midnight is not None
    assert until_midnight.until_s - until_midnight.since_s == 24 * HOUR_S
    assert always_on([], since_s=0.0, until_s=FOREVER_S) is None


def test_what_has_no_price_is_named_and_in_no_sum() -> None:
    assert of(there(0, 1, kind="a", usd=None), there(0, 1, kind="b")) == [
        AlwaysOnMachines(kind="a", count=1, cost_usd=None),
        AlwaysOnMachines(kind="b", count=1, cost_usd=Decimal("48.0000")),
    ]


def test_a_replica_elsewhere_is_another_kind_at_its_own_price() -> None:
    usage = ReplicaUsage(
        replica="r",
        machine_type="n1-standard-4",
        region="europe-west4",
        start_time_s=NOON_S,
        end_time_s=NOON_S + HOUR_S,
    )
    time = MachineTime.of_usage(usage, catalogue=load_catalogue())
    assert (time.kind, time.usd_per_hour) == ("n1-standard-4 in europe-west4", Fraction("0.19") / 49 * 54)
