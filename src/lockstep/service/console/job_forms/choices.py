"""What the fields of the form offer, with list prices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Final

from lockstep.jobs.input.predictions import DataFormat
from lockstep.jobs.input.spec import AcceleratorType, ScaleTier
from lockstep.jobs.machines.catalogue import Catalogue, MachineType, Source
from lockstep.jobs.running.restarts import RestartCondition

Choice = tuple[str, str]
"""A value, and what is said of it."""

_NO_CHOICE: Final = ("", "-")
_UNPRICED: Final = "no list price"
_RESTARTS: Final = {
    RestartCondition.NEVER: "never",
    RestartCondition.ON_MACHINE_ERROR: "if a machine failed (default)",
    RestartCondition.ON_FAILURE: "after every failure",
}


def choices_of(catalogue: Catalogue, *, region: str | None) -> Mapping[str, Sequence[Choice]]:
    """Returns the choices of each field that has some, by the names that fields call them.

    Args:
        catalogue: the machines and their prices.
        region: the region of the job, whose prices are said; those of the Americas if it has none, or an unknown one.
    """
    known = region if catalogue.has_region(region) else None
    formats = [name for name in DataFormat if name is not DataFormat.DATA_FORMAT_UNSPECIFIED]
    return {
        "tiers": [("", f"default: {_tier(ScaleTier.BASIC, catalogue, known)}"), *_tiers(catalogue, known)],
        "machines": [
            _NO_CHOICE,
            *((name, _machine(name, entry, catalogue, known)) for name, entry in catalogue.machine_types.items()),
        ],
        "accelerators": [
            _NO_CHOICE,
            *((str(kind), f"{kind} · {_accelerator(kind, catalogue, known)}") for kind in catalogue.accelerators),
        ],
        "restarts": [_NO_CHOICE, *((str(condition), text) for condition, text in _RESTARTS.items())],
        "formats": [_NO_CHOICE, *((str(name), str(name)) for name in formats)],
        "image_formats": [_NO_CHOICE, ("IMAGE_FILES", "IMAGE_FILES")],
        "output_formats": [("", "default: JSON"), ("JSON", "JSON"), ("CSV", "CSV")],
    }


def _tiers(catalogue: Catalogue, region: str | None) -> list[Choice]:
    own = [(str(tier), _tier(tier, catalogue, region)) for tier in catalogue.scale_tiers]
    return [*own, (str(ScaleTier.CUSTOM), "CUSTOM · the machines below")]


def _tier(tier: ScaleTier, catalogue: Catalogue, region: str | None) -> str:
    members = catalogue.scale_tiers[tier].values()
    prices = [
        catalogue.usd_per_hour(member.machine_type, accelerator=member.accelerator, region=region) for member in members
    ]
    known = [price * member.count for price, member in zip(prices, members, strict=True) if price is not None]
    total = sum(known, Fraction(0)) if len(known) == len(prices) else None
    num_replicas = sum(member.count for member in members)
    return f"{tier} · {num_replicas} replica{'' if num_replicas == 1 else 's'} · {_price(total)}"


def _machine(name: str, entry: MachineType, catalogue: Catalogue, region: str | None) -> str:
    built_in = entry.built_in
    owned = "" if built_in is None else f" · {built_in.count} x {built_in.type}"
    price = catalogue.usd_per_hour(name, accelerator=built_in, region=region)
    return f"{name} · {entry.vcpus} vCPUs · {entry.memory_gib:g} GiB{owned} · {_price(price)}"


def _accelerator(kind: AcceleratorType, catalogue: Catalogue, region: str | None) -> str:
    entry = catalogue.accelerators[kind]
    if entry.usd_per_hour is None or entry.source is None:
        return _UNPRICED
    price = Fraction(entry.usd_per_hour) / entry.priced_count
    if entry.source is not Source.OPERATOR:
        if catalogue.price_region(region) not in catalogue.price_lists[entry.source].regions:
            return _UNPRICED
        price *= catalogue.ml_unit_usd(region) / catalogue.ml_unit_usd(None)
    return f"{_price(price)} each"


def _price(usd_per_hour: Fraction | None) -> str:
    return _UNPRICED if usd_per_hour is None else f"${float(usd_per_hour):,.2f}/h"
