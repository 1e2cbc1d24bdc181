"""Divides a job's bill among its attempts, so that the parts sum to the whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Final, final

from lockstep.jobs.billing.bills import COST_DECIMALS, HOUR_US, LINE_DECIMALS, ReplicaUsage, round_half_up
from lockstep.jobs.input.spec import AcceleratorConfig
from lockstep.jobs.machines.catalogue import Catalogue

TIME_DECIMALS: Final = 3


@final
@dataclass(frozen=True, kw_only=True)
class AttemptCost:
    """The cost of one attempt.

    Attributes:
        machine_s: the running time of all replicas together, in seconds to three decimals.
        ml_units: the ML units of its priced machines, to six decimals; None if no machine is priced.
        cost_usd: its part of the bill, in US dollars to four decimals; None if no machine is priced.
    """

    machine_s: Decimal
    ml_units: Decimal | None
    cost_usd: Decimal | None


def split_bill(
    cost_usd: Decimal | None, *, attempts: Sequence[Sequence[ReplicaUsage]], catalogue: Catalogue
) -> list[AttemptCost]:
    """Divides a job's bill among its attempts.

    The ML units of the attempts have six decimals and sum to the exact total, truncated to six decimals. Rounded to
    two decimals, that total is the figure of the bill. The costs sum to the cost of the bill to the last decimal.

    Args:
        cost_usd: the cost of the bill, in US dollars; None if it is unpriced.
        attempts: the usages of each attempt's replicas; empty for an attempt that never ran.
        catalogue: machines and prices.

    Raises:
        ConfigError: If a machine type or a region is not in the catalogue.
    """
    units = [_units(usages, catalogue=catalogue) for usages in attempts]
    prices = [catalogue.ml_unit_usd(usages[0].region) if usages else Fraction(0) for usages in attempts]
    usd = [each * price for each, price in zip(units, prices, strict=True)]
    whole = sum(usd, Fraction(0))
    units_before, usd_before = _Running(), _Running()
    found: list[AttemptCost] = []
    for usages, mine, mine_usd in zip(attempts, units, usd, strict=True):
        is_unpriced = bool(usages) and not mine and not _is_priced(usages, catalogue=catalogue)
        shown_units = units_before.add(mine, decimals=LINE_DECIMALS, half_up=False)
        share = Fraction(0) if not whole or cost_usd is None else Fraction(cost_usd) * mine_usd / whole
        shown_usd = usd_before.add(share, decimals=COST_DECIMALS, half_up=True)
        seconds = Fraction(sum(usage.length_us for usage in usages), HOUR_US) * 3600
        found.append(
            AttemptCost(
                machine_s=round_half_up(seconds, decimals=TIME_DECIMALS),
                ml_units=None if is_unpriced else shown_units,
                cost_usd=None if is_unpriced or cost_usd is None else shown_usd,
            )
        )
    return found


@final
class _Running:
    """Rounds parts so that they sum to the rounded total: each part is the growth of the rounded running total."""

    def __init__(self) -> None:
        self._exact = Fraction(0)
        self._shown = Decimal(0)

    def add(self, part: Fraction, *, decimals: int, half_up: bool) -> Decimal:
        self._exact += part
        shown = round_half_up(self._exact, decimals=decimals) if half_up else _cut(self._exact, decimals=decimals)
        grown, self._shown = shown - self._shown, shown
        return grown


def _cut(value: Fraction, *, decimals: int) -> Decimal:
    return Decimal(value * 10**decimals // 1).scaleb(-decimals)


def _units(usages: Sequence[ReplicaUsage], *, catalogue: Catalogue) -> Fraction:
    lengths_us: Counter[tuple[str, AcceleratorConfig | None, str | None]] = Counter()
    for usage in usages:
        lengths_us[usage.machine_type, usage.accelerator, usage.region] += usage.length_us
    total = Fraction(0)
    for (machine_type, accelerator, region), length_us in lengths_us.items():
        rate = catalogue.units_per_hour(machine_type, accelerator=accelerator, region=region)
        if rate:
            total += rate * Fraction(length_us, HOUR_US)
    return total


def _is_priced(usages: Sequence[ReplicaUsage], *, catalogue: Catalogue) -> bool:
    return any(
        catalogue.units_per_hour(usage.machine_type, accelerator=usage.accelerator, region=usage.region) is not None
        for usage in usages
    )
