"""What a job consumed and cost, computed exactly from recorded intervals and rounded once.

The contract's rule: ``consumedMLUnits`` is the sum, over all replicas, of ML units per hour times the hours in RUNNING.
It is reported to two decimals (half up). The cost is the reported figure times the price of a unit, to four decimals,
so you can check a bill by hand from the job's own figures. A job that was restarted in another price region has one
such figure for each region. Each is rounded separately, and the bill is their sum.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import Final, final

from pydantic import TypeAdapter

from lockstep.jobs.input.gangs import describe_machine
from lockstep.jobs.input.spec import AcceleratorConfig
from lockstep.jobs.machines.catalogue import Catalogue, Source

UNIT_DECIMALS: Final = 2
COST_DECIMALS: Final = 4
LINE_DECIMALS: Final = 6

HOUR_US: Final = 3600 * 10**6

_MICROSECONDS_PER_S: Final = 10**6


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaUsage:
    """An interval that one replica spent in RUNNING.

    Attributes:
        replica: the name of the replica, such as ``master-replica-0``.
        machine_type: the name of its machine type.
        accelerator: its accelerators, including those of the machine type.
        region: the region, whose price of a unit applies; None for the Americas.
        start_time_s: the start of the interval, in seconds since 1970 UTC.
        end_time_s: its end.
        machine: the name of the node in the ledger; "" if the nodes are not in the ledger.
    """

    replica: str
    machine_type: str
    accelerator: AcceleratorConfig | None = None
    region: str | None = None
    start_time_s: float
    end_time_s: float
    machine: str = ""

    @property
    def length_us(self) -> int:
        """The length in microseconds; 0 if it is negative because a clock was set back."""
        return max(0, round(self.end_time_s * _MICROSECONDS_PER_S) - round(self.start_time_s * _MICROSECONDS_PER_S))

    @property
    def hours(self) -> Fraction:
        """The length in hours, to the microsecond; 0 if it is negative because a clock was set back."""
        return Fraction(self.length_us, HOUR_US)


_Priced = tuple[str, AcceleratorConfig | None, str | None]
"""What a price depends on: machine type, accelerators, region."""


@final
@dataclass(frozen=True, kw_only=True)
class BillLine:
    """One interval in a bill.

    Attributes:
        replica: the name of the replica.
        machine: a description of its machine.
        hours: the length in hours, to six decimals.
        ml_units: the ML units consumed, to six decimals; None if the machine is unpriced.
        cost_usd: their cost in US dollars, to six decimals; None if the machine is unpriced.
    """

    replica: str
    machine: str
    hours: Decimal
    ml_units: Decimal | None
    cost_usd: Decimal | None


@final
@dataclass(frozen=True, kw_only=True)
class Bill:
    """What a job consumed and cost.

    Attributes:
        ml_units: the ML units of priced machines, rounded to two decimals in each price region; None if no machine is
            priced.
        cost_usd: those units times their price in each region, in US dollars, to four decimals; None if no machine is
            priced.
        lines: the intervals.
        unpriced: descriptions of machines without a price in the region; their cost is not in the sums.
        sources: the names of the price lists that were used.
        has_own_prices: whether one of those lists is the operator's own.
    """

    ml_units: Decimal | None
    cost_usd: Decimal | None
    lines: tuple[BillLine, ...] = ()
    unpriced: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    has_own_prices: bool = False

    def describe(self) -> str:
        """Returns the bill in words, such as "1.79 ML units, $0.8771", with the names of unpriced machines."""
        parts = [] if self.ml_units is None else [f"{self.ml_units} ML units", f"${self.cost_usd}"]
        if self.unpriced:
            parts.append(f"unpriced: {', '.join(self.unpriced)}")
        return ", ".join(parts)


BILL: Final = TypeAdapter(Bill)
"""Reads and writes a `Bill` as JSON."""


def sum_bills(bills: Iterable[Bill]) -> Bill:
    """Returns the sum of bills, without their lines.

    Args:
        bills: the bills. Their figures are rounded already, so the sum is that of the figures which people see.
    """
    found = list(bills)
    units = [each.ml_units for each in found if each.ml_units is not None]
    costs = [each.cost_usd for each in found if each.cost_usd is not None]
    zero = Decimal(0)
    return Bill(
        ml_units=sum(units, zero.scaleb(-UNIT_DECIMALS)) if units else None,
        cost_usd=sum(costs, zero.scaleb(-COST_DECIMALS)) if costs else None,
        unpriced=tuple(dict.fromkeys(name for each in found for name in each.unpriced)),
        sources=tuple(dict.fromkeys(name for each in found for name in each.sources)),
        has_own_prices=any(each.has_own_prices for each in found),
    )


def bill(usages: Iterable[ReplicaUsage], *, catalogue: Catalogue) -> Bill:
    """Sums what replicas consumed.

    Args:
        usages: intervals in RUNNING; a replica that ran several times has several of them.
        catalogue: machines and prices.

    Raises:
        ConfigError: If a machine type or a region is not in the catalogue.
    """
    totals: dict[str, Fraction] = {}
    lines: list[BillLine] = []
    unpriced: dict[str, None] = {}
    sources: dict[str, None] = {}
    charged: dict[tuple[_Priced, int], tuple[Fraction | None, BillLine]] = {}
    for usage in usages:
        kind = (usage.machine_type, usage.accelerator, usage.region)
        # Replicas of a job are mostly alike, and fractions take long.
        found = charged.get((kind, usage.length_us))
        if found is None:
            found = charged[kind, usage.length_us] = _charge(usage, catalogue=catalogue)
        units, line = found
        if units is None:
            unpriced[line.machine] = None
        else:
            sources |= dict.fromkeys(catalogue.price_list_names(usage.machine_type, accelerator=usage.accelerator))
            price_region = catalogue.price_region(usage.region)
            totals[price_region] = totals.get(price_region, Fraction(0)) + units
        lines.append(replace(line, replica=usage.replica))
    # A job without any interval consumed nothing. The consumption of a job on unpriced machines only is unknown.
    known = not unpriced or any(line.ml_units is not None for line in lines)
    reported = {region: round_half_up(units, decimals=UNIT_DECIMALS) for region, units in totals.items()}
    cost = sum(
        (Fraction(units) * catalogue.ml_unit_usd_of_price_region(region) for region, units in reported.items()),
        Fraction(0),
    )
    return Bill(
        ml_units=sum(reported.values(), round_half_up(Fraction(0), decimals=UNIT_DECIMALS)) if known else None,
        cost_usd=round_half_up(cost, decimals=COST_DECIMALS) if known else None,
        lines=tuple(lines),
        unpriced=tuple(unpriced),
        sources=tuple(sources),
        has_own_prices=Source.OPERATOR in catalogue.price_lists
        and catalogue.price_lists[Source.OPERATOR].name in sources,
    )


def _charge(usage: ReplicaUsage, *, catalogue: Catalogue) -> tuple[Fraction | None, BillLine]:
    """Returns the ML units of an interval, exactly, and its line; None for the units if the machine is unpriced."""
    units_per_hour = catalogue.units_per_hour(usage.machine_type, accelerator=usage.accelerator, region=usage.region)
    units = None if units_per_hour is None else units_per_hour * usage.hours
    cost = None if units is None else units * catalogue.ml_unit_usd(usage.region)
    return units, BillLine(
        replica=usage.replica,
        machine=describe_machine(usage.machine_type, accelerator=usage.accelerator),
        hours=round_half_up(usage.hours, decimals=LINE_DECIMALS),
        ml_units=None if units is None else round_half_up(units, decimals=LINE_DECIMALS),
        cost_usd=None if cost is None else round_half_up(cost, decimals=LINE_DECIMALS),
    )


def round_half_up(value: Fraction, *, decimals: int) -> Decimal:
    """Rounds half up, exactly, without floats.

    Args:
        value: the number to round.
        decimals: the number of decimals to keep.
    """
    over, under = value.numerator * 10**decimals, value.denominator
    whole = (2 * over + under) // (2 * under)
    return Decimal(whole).scaleb(-decimals)
