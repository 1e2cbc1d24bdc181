"""A job's bill, divided among the starts of its gang."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.jobs.billing.attempt_costs import split_bill
from lockstep.jobs.billing.bills import ReplicaUsage, bill, round_half_up
from lockstep.jobs.machines.catalogue import load_catalogue

CATALOGUE = load_catalogue()
START_S = 1_767_225_600.25


def _usage(duration_s: float, machine_type: str = "n1-standard-4", region: str | None = None) -> ReplicaUsage:
    return ReplicaUsage(
        replica="r", machine_type=machine_type, region=region, start_time_s=START_S, end_time_s=START_S + duration_s
    )


def _split(attempts: list[list[ReplicaUsage]]) -> list[tuple[str, str | None, str | None]]:
    charged = bill([usage for usages in attempts for usage in usages], catalogue=CATALOGUE)
    found = split_bill(charged.cost_usd, attempts=attempts, catalogue=CATALOGUE)
    return [
        (
            str(each.machine_s),
            None if each.ml_units is None else str(each.ml_units),
            None if each.cost_usd is None else str(each.cost_usd),
        )
        for each in found
    ]


@pytest.mark.parametrize(
    ("attempts", "expected"),
    [
        ([], []),
        ([[]], [("0.000", "0.000000", "0.0000")]),
        ([[_usage(3600)]], [("3600.000", "0.387755", "0.1911")]),
        ([[_usage(3600)], []], [("3600.000", "0.387755", "0.1911"), ("0.000", "0.000000", "0.0000")]),
        ([[_usage(1800)], [_usage(1800)]], [("1800.000", "0.193877", "0.0956"), ("1800.000", "0.193878", "0.0955")]),
        ([[_usage(3600), _usage(3600)]], [("7200.000", "0.775510", "0.3822")]),
    ],
    ids=["nothing", "never ran", "one", "one that never ran", "a rest of a decimal", "two replicas"],
)
def test_each_start_has_its_machine_time_units_and_share(
    attempts: list[list[ReplicaUsage]], expected: list[tuple[str, str, str]]
) -> None:
    assert _split(attempts) == expected


@given(
    st.lists(
        st.lists(st.tuples(st.floats(0, 1e6), st.sampled_from(["n1-standard-4", "n1-standard-8"])), max_size=3),
        max_size=6,
    ),
    st.sampled_from([None, "europe-west4"]),
)
def test_the_parts_are_the_bill(runs: list[list[tuple[float, str]]], region: str | None) -> None:
    attempts = [[_usage(length_s, kind, region) for length_s, kind in usages] for usages in runs]
    charged = bill([usage for usages in attempts for usage in usages], catalogue=CATALOGUE)
    found = split_bill(charged.cost_usd, attempts=attempts, catalogue=CATALOGUE)
    assert sum((each.cost_usd or Decimal(0) for each in found), Decimal(0)) == charged.cost_usd
    units = sum((each.ml_units or Decimal(0) for each in found), Decimal(0))
    assert round_half_up(Fraction(units), decimals=2) == charged.ml_units
    assert all((each.cost_usd or 0) >= 0 and (each.ml_units or 0) >= 0 for each in found)


def test_what_is_unpriced_is_not_said_to_be_free() -> None:
    attempts = [[_usage(3600, "n1-highmem-4")], [_usage(3600), _usage(3600, "n1-highmem-4")], []]
    assert _split(attempts[:1]) == [("3600.000", None, None)]
    assert _split(attempts) == [
        ("3600.000", None, None),
        ("7200.000", "0.387755", "0.1911"),
        ("0.000", "0.000000", "0.0000"),
    ]
