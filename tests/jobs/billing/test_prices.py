"""The operator's own prices."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from lockstep.errors import ConfigError
from lockstep.jobs.billing.bills import ReplicaUsage, bill
from lockstep.jobs.billing.prices import apply_prices
from lockstep.jobs.input.spec import AcceleratorConfig, AcceleratorType
from lockstep.jobs.machines.catalogue import load_catalogue
from lockstep.jobs.parsing.yaml_documents import parse_yaml
from lockstep.service.api.billing.bills import bill_form

TEXT = """
date: 2026-11-01
source: our contract
machineTypes: {n1-highmem-4: "0.30", n1-standard-4: "0.21"}
accelerators: {NVIDIA_TESLA_T4: "0.35"}
"""
OURS = apply_prices(load_catalogue(), document=parse_yaml(TEXT, source="p"), source="p")


def hour(machine_type: str, **changes: Any) -> ReplicaUsage:
    return ReplicaUsage(replica="r", machine_type=machine_type, start_time_s=0.0, end_time_s=3600.0, **changes)


@pytest.mark.parametrize("region", [None, "europe-west4"])
def test_ones_own_price_is_what_is_paid_wherever_it_is(region: str | None) -> None:
    [line] = bill([hour("n1-highmem-4", region=region)], catalogue=OURS).lines
    assert line.cost_usd == Decimal("0.300000")


def test_own_and_list_prices_add_up_and_are_named() -> None:
    t4 = AcceleratorConfig(type=AcceleratorType.NVIDIA_TESLA_T4, count=2)
    result = bill([hour("n1-standard-8", accelerator=t4)], catalogue=OURS)
    assert result.lines[0].cost_usd == Decimal("1.080000")  # 0.38 of the list, twice 0.35 of ours
    assert result.sources == ("AI Platform Training's list of 2021", "our contract, 2026-11-01")
    assert bill_form(result, simulated=True)["note"] == (
        "prices: AI Platform Training's list of 2021, our contract, 2026-11-01, simulated machines, nothing owed"
    )
    assert not bill([hour("n1-standard-8")], catalogue=OURS).has_own_prices


def test_what_neither_prices_stays_unpriced_and_the_catalogue_as_it_was() -> None:
    assert bill([hour("n1-highmem-32")], catalogue=OURS).unpriced == ("n1-highmem-32",)
    assert bill([hour("n1-highmem-4")], catalogue=load_catalogue()).unpriced == ("n1-highmem-4",)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        pytest.param({"machineTypes": {"n1-standard-5": "1"}}, "n1-standard-5", id="no such machine"),
        pytest.param({"machineTypes": {"n1-standard-4": 0.21}}, "in quotes", id="a float"),
        pytest.param({"accelerators": {"H100": "1"}}, "H100", id="no such accelerator"),
        pytest.param({"date": "yesterday"}, "a day", id="no day"),
        pytest.param({"date": "2026-13-01"}, "a day", id="no such month"),
        pytest.param({"source": None}, "source", id="no source"),
        pytest.param({"source": ""}, "source", id="an empty source"),
        pytest.param({"version": 2}, "version", id="another version"),
        pytest.param({"machines": {}}, "machines", id="an unknown key"),
    ],
)
def test_what_cannot_be_used_is_refused(changes: dict[str, Any], what: str) -> None:
    document = {"date": "2026-11-01", "source": "ours", **changes}
    with pytest.raises(ConfigError, match=what):
        apply_prices(load_catalogue(), document=document, source="p")
