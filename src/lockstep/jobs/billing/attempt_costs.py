"""What each start of a job's gang cost: a job's bill, divided among them so that the parts are the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Final, final

from lockstep.jobs.billing.bills import COST_DECIMALS, LINE_DECIMALS, ReplicaUsage, round_half_up
from lockstep.jobs.machines.catalogue import Catalogue

TIME_DECIMALS: Final = 3


@final
@dataclass(frozen=True, kw_only=True)
class AttemptCost:
    """What one start cost.

    Attributes:
        machine_s: how long its machines ran, all replicas added up, in seconds to three decimals.
        ml_units: ML units of what is priced, to six decimals; None where nothing of it is.
        cost_usd: its share of the bill, in US dollars to four decimals; None where nothing of it is priced.
    """

    machine_s: Decimal
    ml_units: Decimal | None
    cost_usd: Decimal | None


def split_bill(
    cost_usd: Decimal | None, *, attempts: Sequence[Sequence[ReplicaUsage]], catalogue: Catalogue
) -> list[AttemptCost]:
    """Divides a job's bill among its starts.

    Their ML units have six decimals and add up to the exact sum, cut there: rounded to two, that is the figure of the
    bill. Their costs add up to the bill's cost to the last decimal.

    Args:
        cost_usd: what the bill says; None where it is unpriced.
        attempts: what the replicas of each start ran; nothing for one that never did.
        catalogue: machines and prices.

    Raises:
        ConfigError: a machine type or a region is not in the catalogue.
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
        seconds = sum((usage.hours for usage in usages), Fraction(0)) * 3600
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
    """Rounds parts so that they add up to the rounded sum: each is what the sum so far grows by."""

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
    rates = [
        catalogue.units_per_hour(usage.machine_type, accelerator=usage.accelerator, region=usage.region)
        for usage in usages
    ]
    return sum((rate * usage.hours for rate, usage in zip(rates, usages, strict=True) if rate), Fraction(0))


def _is_priced(usages: Sequence[ReplicaUsage], *, catalogue: Catalogue) -> bool:
    return any(
        catalogue.units_per_hour(usage.machine_type, accelerator=usage.accelerator, region=usage.region) is not None
        for usage in usages
    )
