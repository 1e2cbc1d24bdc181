"""Bills against the contract's published checks."""

from __future__ import annotations

import itertools
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.jobs.billing.bills import ReplicaUsage, bill
from lockstep.jobs.input.spec import AcceleratorConfig, AcceleratorType
from lockstep.jobs.machines.catalogue import load_catalogue

CATALOGUE = load_catalogue()
TWO_V100 = AcceleratorConfig(count=2, type=AcceleratorType.NVIDIA_TESLA_V100)
START_TIME_S = 1_767_225_600.25


def usage(
    machine_type: str,
    *,
    duration_s: float,
    accelerator: AcceleratorConfig | None = None,
    replica: str = "master-replica-0",
    region: str | None = None,
) -> ReplicaUsage:
    return ReplicaUsage(
        replica=replica,
        machine_type=machine_type,
        accelerator=accelerator,
        region=region,
        start_time_s=START_TIME_S,
        end_time_s=START_TIME_S + duration_s,
    )


def test_the_reference_job_costs_what_it_cost() -> None:
    result = bill([usage("n1-standard-8", accelerator=TWO_V100, duration_s=591)], catalogue=CATALOGUE)
    assert result.ml_units == Decimal("1.79")
    assert result.cost_usd == Decimal("0.8771")
    assert result.unpriced == ()
    assert result.describe() == "1.79 ML units, $0.8771"
    (line,) = result.lines
    assert line.machine == "n1-standard-8 + 2 x NVIDIA_TESLA_V100"
    assert (line.hours, line.ml_units) == (Decimal("0.164167"), Decimal("1.789082"))


def test_the_highmem_job_consumed_what_it_reported() -> None:
    # The published report gives 0.96 h and 1.85: both are rounded, and 1.8558 is what they come from at most.
    (line,) = bill([usage("n1-highmem-16", duration_s=0.96 * 3600)], catalogue=CATALOGUE).lines
    assert line.ml_units == Decimal("1.855739")
    assert abs(line.ml_units - Decimal("1.85")) < Decimal("0.01")


def test_the_cost_follows_from_the_reported_units() -> None:
    result = bill([usage("n1-standard-4", duration_s=3600, region="europe-west4")], catalogue=CATALOGUE)
    assert result.ml_units == Decimal("0.39")
    assert result.cost_usd == Decimal("0.39") * Decimal("0.54")


def test_a_job_that_moved_to_another_price_region_pays_each_regions_price() -> None:
    usages = [usage("n1-standard-4", duration_s=3600, region=region) for region in ("us-east1", "europe-west4")]
    result = bill(usages, catalogue=CATALOGUE)
    assert result.ml_units == Decimal("0.78")
    assert result.cost_usd == Decimal("0.39") * Decimal("0.49") + Decimal("0.39") * Decimal("0.54")
    americas, europe = (line.cost_usd for line in result.lines)
    assert (americas, europe) == (Decimal("0.190000"), Decimal("0.209388"))


def test_replicas_add_up() -> None:
    usages = [usage("n1-standard-4", duration_s=1800, replica=f"worker-replica-{index}") for index in range(4)]
    result = bill(usages, catalogue=CATALOGUE)
    assert result.ml_units == Decimal("0.78")
    assert [line.replica for line in result.lines] == [f"worker-replica-{index}" for index in range(4)]


def test_what_has_no_price_is_unpriced_and_never_free() -> None:
    result = bill([usage("n1-highmem-4", duration_s=3600)], catalogue=CATALOGUE)
    assert (result.ml_units, result.cost_usd, result.unpriced) == (None, None, ("n1-highmem-4",))
    assert result.lines[0].ml_units is None
    assert result.describe() == "unpriced: n1-highmem-4"


def test_what_is_priced_adds_up_beside_what_is_not() -> None:
    usages = [usage("n1-highmem-4", duration_s=60), usage("n1-standard-8", duration_s=3600)] * 2
    result = bill(usages, catalogue=CATALOGUE)
    assert result.describe() == "1.55 ML units, $0.7595, unpriced: n1-highmem-4"


def test_a_job_that_never_ran_costs_nothing() -> None:
    result = bill([], catalogue=CATALOGUE)
    assert (result.ml_units, result.cost_usd) == (Decimal("0.00"), Decimal("0.0000"))


def test_a_clock_that_was_set_back_counts_as_no_time() -> None:
    assert bill([usage("n1-standard-8", duration_s=-5)], catalogue=CATALOGUE).ml_units == 0


@given(parts_ms=st.lists(st.integers(0, 10**8), min_size=1, max_size=6))
def test_an_interval_costs_the_same_in_one_piece_or_in_several(parts_ms: list[int]) -> None:
    ends = [0]
    for part in parts_ms:
        ends.append(ends[-1] + part)
    pieces = [
        ReplicaUsage(replica="r", machine_type="n1-standard-8", start_time_s=start / 1000, end_time_s=end / 1000)
        for start, end in itertools.pairwise(ends)
    ]
    whole = ReplicaUsage(replica="r", machine_type="n1-standard-8", start_time_s=0, end_time_s=ends[-1] / 1000)
    assert sum((piece.hours for piece in pieces), Fraction(0)) == whole.hours
    assert bill(pieces, catalogue=CATALOGUE).cost_usd == bill([whole], catalogue=CATALOGUE).cost_usd


@pytest.mark.parametrize(("duration_s", "units"), [(23.2, "0.00"), (23.3, "0.01"), (69.7, "0.02")])
def test_units_are_rounded_half_up(duration_s: float, units: str) -> None:
    # One hour of n1-standard-8 is 0.7755 units, so half a hundredth is 23.21 s, and one and a half 69.63 s.
    assert bill([usage("n1-standard-8", duration_s=duration_s)], catalogue=CATALOGUE).ml_units == Decimal(units)
