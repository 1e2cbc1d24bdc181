"""What a job consumed and cost: arithmetic over recorded intervals, exact until it is rounded once.

The contract's rule: ``consumedMLUnits`` is the sum over replicas of ML units an hour times the hours in RUNNING. It is
reported to two decimals (half up), and the cost is the reported figure times the price of a unit, to four decimals: so
a bill can be checked by hand from what the job says of itself. A job that was started again in another price region has
two such figures, each rounded by itself, and the bill is their sum.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
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

_MICROSECONDS_PER_S: Final = 10**6


@final
@dataclass(frozen=True, kw_only=True)
class ReplicaUsage:
    """An interval that one replica spent in RUNNING.

    Attributes:
        replica: its name, such as ``master-replica-0``.
        machine_type: name of its machine type.
        accelerator: its accelerators, those that come with the machine type included.
        region: where it was, whose price of a unit applies; None stands for the Americas.
        start_time_s: when the interval began, seconds since 1970 UTC.
        end_time_s: when it ended.
        machine: the node that it was on, by its name in the ledger; "" where nodes do not come and go.
    """

    replica: str
    machine_type: str
    accelerator: AcceleratorConfig | None = None
    region: str | None = None
    start_time_s: float
    end_time_s: float
    machine: str = ""

    @property
    def hours(self) -> Fraction:
        """How long it was, in hours, to the microsecond; 0 where a clock that was set back made it negative."""
        start, end = (round(time_s * _MICROSECONDS_PER_S) for time_s in (self.start_time_s, self.end_time_s))
        return Fraction(max(0, end - start), 3600 * _MICROSECONDS_PER_S)


@final
@dataclass(frozen=True, kw_only=True)
class BillLine:
    """One interval's share of a bill.

    Attributes:
        replica: the replica's name.
        machine: its machine in words.
        hours: how long, to six decimals.
        ml_units: ML units consumed, to six decimals; None where the machine is unpriced.
        cost_usd: their cost in US dollars, to six decimals; None where the machine is unpriced.
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
        ml_units: ML units consumed by what is priced, to two decimals in each price region; None where nothing is.
        cost_usd: those units times their price in each region, in US dollars, to four decimals; None where nothing is
            priced.
        lines: every interval.
        unpriced: machines in words that have no known price in the region: what they cost is not in the sums.
        sources: names of the lists that the prices are from.
        has_own_prices: whether any of them is the operator's own.
    """

    ml_units: Decimal | None
    cost_usd: Decimal | None
    lines: tuple[BillLine, ...] = ()
    unpriced: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    has_own_prices: bool = False

    def describe(self) -> str:
        """Says it in words: "1.79 ML units, $0.8771", with what is unpriced named."""
        parts = [] if self.ml_units is None else [f"{self.ml_units} ML units", f"${self.cost_usd}"]
        if self.unpriced:
            parts.append(f"unpriced: {', '.join(self.unpriced)}")
        return ", ".join(parts)


BILL: Final = TypeAdapter(Bill)
"""Reads and writes a `Bill` as JSON."""


def bill(usages: Iterable[ReplicaUsage], *, catalogue: Catalogue) -> Bill:
    """Adds up what replicas consumed.

    Args:
        usages: intervals in RUNNING; a replica that ran several times has several.
        catalogue: machines and prices.

    Raises:
        ConfigError: a machine type or a region is not in the catalogue.
    """
    totals: dict[str, Fraction] = {}
    lines: list[BillLine] = []
    unpriced: dict[str, None] = {}
    sources: dict[str, None] = {}
    for usage in usages:
        machine = describe_machine(usage.machine_type, accelerator=usage.accelerator)
        price_region = catalogue.price_region(usage.region)
        unit_usd = catalogue.ml_unit_usd(usage.region)
        units_per_hour = catalogue.units_per_hour(
            usage.machine_type, accelerator=usage.accelerator, region=usage.region
        )
        units = None if units_per_hour is None else units_per_hour * usage.hours
        if units is None:
            unpriced[machine] = None
        else:
            sources |= dict.fromkeys(catalogue.price_list_names(usage.machine_type, accelerator=usage.accelerator))
            totals[price_region] = totals.get(price_region, Fraction(0)) + units
        lines.append(
            BillLine(
                replica=usage.replica,
                machine=machine,
                hours=round_half_up(usage.hours, decimals=LINE_DECIMALS),
                ml_units=None if units is None else round_half_up(units, decimals=LINE_DECIMALS),
                cost_usd=None if units is None else round_half_up(units * unit_usd, decimals=LINE_DECIMALS),
            )
        )
    # A job without any interval consumed nothing, which is known; one on unpriced machines alone is not known at all.
    known = not unpriced or any(line.ml_units is not None for line in lines)
    reported = {region: round_half_up(units, decimals=UNIT_DECIMALS) for region, units in totals.items()}
    cost = sum((Fraction(units) * catalogue.ml_unit_usd_in(region) for region, units in reported.items()), Fraction(0))
    return Bill(
        ml_units=sum(reported.values(), round_half_up(Fraction(0), decimals=UNIT_DECIMALS)) if known else None,
        cost_usd=round_half_up(cost, decimals=COST_DECIMALS) if known else None,
        lines=tuple(lines),
        unpriced=tuple(unpriced),
        sources=tuple(sources),
        has_own_prices=Source.OPERATOR in catalogue.price_lists
        and catalogue.price_lists[Source.OPERATOR].name in sources,
    )


def round_half_up(value: Fraction, *, decimals: int) -> Decimal:
    """Rounds half up, exactly: the quotient is never a float.

    Args:
        value: what to round.
        decimals: how many decimals stay.
    """
    scaled = value * 10**decimals
    whole = (2 * scaled.numerator + scaled.denominator) // (2 * scaled.denominator)
    return Decimal(whole).scaleb(-decimals)
