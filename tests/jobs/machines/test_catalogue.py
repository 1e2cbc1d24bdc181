"""The machine catalogue against the contract's published figures."""

from __future__ import annotations

from fractions import Fraction

import pytest

from lockstep.errors import ConfigError
from lockstep.jobs.input.gangs import resolve
from lockstep.jobs.input.spec import AcceleratorConfig, AcceleratorType, ScaleTier, TrainingInput
from lockstep.jobs.machines.catalogue import load_catalogue, parse_catalogue

CATALOGUE = load_catalogue()


def test_every_accelerator_that_can_be_asked_for_is_in_it() -> None:
    assert set(CATALOGUE.accelerators) == set(AcceleratorType)


@pytest.mark.parametrize(
    ("machine_type", "units"),
    [
        ("n1-standard-4", 0.3878),
        ("n1-standard-8", 0.7755),
        ("n1-standard-16", 1.5510),
        ("n1-standard-32", 3.1020),
        ("n1-standard-64", 6.2041),
        ("n1-standard-96", 9.3061),
        ("n1-highmem-2", 0.2416),
        ("n1-highmem-16", 1.9331),
        ("large_model", 0.9665),
        ("complex_model_s", 0.5788),
        ("complex_model_m", 1.1576),
        ("complex_model_l", 2.3151),
    ],
)
def test_units_are_the_published_ones(machine_type: str, units: float) -> None:
    found = CATALOGUE.units_per_hour(machine_type, accelerator=None)
    assert found is not None
    assert float(found) == pytest.approx(units, abs=5.1e-5)


@pytest.mark.parametrize(
    ("tier", "units", "usd"),
    [
        (ScaleTier.BASIC, 0.3878, "0.19"),
        (ScaleTier.STANDARD_1, 4.0571, "1.988"),
        (ScaleTier.PREMIUM_1, 33.7829, "16.5536"),
        (ScaleTier.BASIC_GPU, 1.6939, "0.83"),
        (ScaleTier.BASIC_TPU, 9.5714, "4.69"),
    ],
)
def test_tiers_add_up_to_the_published_prices(tier: ScaleTier, units: float, usd: str) -> None:
    gang = resolve(TrainingInput(scale_tier=tier), catalogue=CATALOGUE)
    parts = [CATALOGUE.units_per_hour(replica.machine_type, accelerator=replica.accelerator) for replica in gang]
    total = sum((part for part in parts if part is not None), Fraction(0))
    assert None not in parts
    assert total * CATALOGUE.ml_unit_usd("us-central1") == Fraction(usd)
    assert float(total) == pytest.approx(units, abs=5.1e-5)


def test_the_reference_machine_has_the_reference_units() -> None:
    two_v100 = AcceleratorConfig(count=2, type=AcceleratorType.NVIDIA_TESLA_V100)
    units = CATALOGUE.units_per_hour("n1-standard-8", accelerator=two_v100)
    assert units == Fraction("5.34") / Fraction("0.49")
    assert round(float(units), 3) == 10.898


@pytest.mark.parametrize(
    ("machine_type", "accelerator"),
    [
        ("n1-highmem-4", None),
        ("a2-highgpu-1g", AcceleratorConfig(count=1, type=AcceleratorType.NVIDIA_TESLA_A100)),
        ("n1-standard-8", AcceleratorConfig(count=1, type=AcceleratorType.NVIDIA_TESLA_T4)),
    ],
)
def test_what_has_no_published_price_is_unpriced(machine_type: str, accelerator: AcceleratorConfig | None) -> None:
    assert CATALOGUE.units_per_hour(machine_type, accelerator=accelerator) is None


@pytest.mark.parametrize(
    ("machine_type", "accelerator", "usd"),
    [
        ("ct5lp-hightpu-8t", AcceleratorConfig(count=8, type=AcceleratorType.TPU_V5E), "9.60"),
        # The host is in a TPU's price; a machine that stands beside it is not.
        ("cloud_tpu", AcceleratorConfig(count=8, type=AcceleratorType.TPU_V2), "4.50"),
        ("cloud_tpu", AcceleratorConfig(count=64, type=AcceleratorType.TPU_V3_POD), "64.00"),
        ("n1-standard-4", AcceleratorConfig(count=8, type=AcceleratorType.TPU_V3), "8.19"),
    ],
)
def test_tpus_cost_what_their_list_says_and_only_where_it_says_so(
    machine_type: str, accelerator: AcceleratorConfig, usd: str
) -> None:
    units = CATALOGUE.units_per_hour(machine_type, accelerator=accelerator, region="us-central1")
    assert units is not None
    assert units * CATALOGUE.ml_unit_usd("us-central1") == Fraction(usd)
    elsewhere = CATALOGUE.units_per_hour(machine_type, accelerator=accelerator, region="europe-west4")
    assert (elsewhere is None) is (accelerator.type is not AcceleratorType.TPU_V2)


@pytest.mark.parametrize(
    ("region", "usd"),
    [
        (None, "0.49"),
        ("us-central1", "0.49"),
        ("southamerica-east1", "0.49"),
        ("europe-west4", "0.54"),
        ("asia-east1", "0.54"),
        ("australia-southeast1", "0.54"),
    ],
)
def test_a_unit_costs_what_its_region_says(region: str | None, usd: str) -> None:
    assert CATALOGUE.ml_unit_usd(region) == Fraction(usd)


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'n1-standard-8'"):
        CATALOGUE.machine_type("n1-standrad-8")
    with pytest.raises(ConfigError, match=r"received 'moon-1'; allowed: us-\.\.\."):
        CATALOGUE.price_region("moon-1")


def test_machines_with_their_own_accelerators_have_a_count_that_is_sold() -> None:
    for machine in CATALOGUE.machine_types.values():
        if machine.built_in is not None:
            assert machine.built_in.count in CATALOGUE.accelerators[machine.built_in.type].counts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "not YAML"),
        ("version: 2", "version"),
        (
            (
                "version: 1\nprice_lists: {}\nml_unit_usd_per_hour: {americas: 0.49}\nregion_prefixes: {}\n"
                "accelerators: {}\nmachine_types: {}\nscale_tiers: {}"
            ),
            r"ml_unit_usd_per_hour\.americas; received 0\.49",
        ),
        (
            (
                "version: 1\nprice_lists: {}\nml_unit_usd_per_hour: {}\nregion_prefixes: {}\naccelerators: {}\n"
                'machine_types: {m: {vcpus: 1, memory_gib: 1, usd_per_hour: "1"}}\nscale_tiers: {}'
            ),
            "machine_types.m is missing; allowed: a source beside the price",
        ),
        (
            (
                "version: 1\nprice_lists: {published: {name: a, regions: []}}\nml_unit_usd_per_hour: {}\n"
                "region_prefixes: {}\naccelerators: {}\nmachine_types: {}\nscale_tiers: {}"
            ),
            "price_lists.derived is missing; allowed: a list for every source",
        ),
    ],
)
def test_a_catalogue_that_is_wrong_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_catalogue(text)
