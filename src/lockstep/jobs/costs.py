"""What jobs cost together: by job, by day, by a label; from the same recorded intervals as each job's own bill.

Sums are exact and rounded once, in each row and in the total by itself, to `COST_DECIMALS` (half up). A single job's
bill rounds its ML units to two decimals first, as the contract reports them: a row of one job may differ by that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Final, final

from lockstep.errors import InvalidInputError
from lockstep.jobs.billing import COST_DECIMALS, ReplicaUsage, round_half_up
from lockstep.jobs.gangs import describe_machine
from lockstep.jobs.machines import Catalogue

BY_JOB: Final = "job"
BY_DAY: Final = "day"
BY_LABEL: Final = "label:"
NO_LABEL: Final = "(none)"


@final
@dataclass(frozen=True, kw_only=True)
class Run:
    """What the replicas of one job ran.

    Attributes:
        job: the job's name.
        labels: its labels.
        simulated: whether nothing is owed for its machines.
        usages: intervals in RUNNING; those of a job that runs end now.
    """

    job: str
    labels: dict[str, str]
    simulated: bool
    usages: tuple[ReplicaUsage, ...]


@final
@dataclass(frozen=True, kw_only=True)
class CostRow:
    """What belongs together.

    Attributes:
        name: the job, the day (UTC, as 2026-11-22), or the label's value.
        machine_hours: hours that its machines ran, all replicas added up.
        ml_units: ML units of what is priced.
        cost_usd: what they cost at list prices, in US dollars.
        owed_usd: the part of it that is owed: not that of simulated machines.
        unpriced: machines in words that have no price: what they cost is in no sum.
    """

    name: str
    machine_hours: Decimal
    ml_units: Decimal
    cost_usd: Decimal
    owed_usd: Decimal
    unpriced: tuple[str, ...] = ()


@final
@dataclass(frozen=True, kw_only=True)
class CostReport:
    """Costs of a while.

    Attributes:
        rows: by name.
        total: all of them.
    """

    rows: tuple[CostRow, ...]
    total: CostRow


@final
class _Sum:
    """Adds up without rounding."""

    def __init__(self) -> None:
        self._hours = self._units = self._usd = self._owed = Fraction(0)
        self._unpriced: dict[str, None] = {}

    def add(self, usage: ReplicaUsage, run: Run, catalogue: Catalogue) -> None:
        self._hours += usage.hours
        per_hour = catalogue.units_per_hour(usage.machine_type, accelerator=usage.accelerator, region=usage.region)
        if per_hour is None:
            self._unpriced[describe_machine(usage.machine_type, accelerator=usage.accelerator)] = None
            return
        units = per_hour * usage.hours
        usd = units * catalogue.ml_unit_usd(usage.region)
        self._units += units
        self._usd += usd
        self._owed += 0 if run.simulated else usd

    def row(self, name: str) -> CostRow:
        amounts = (self._hours, self._units, self._usd, self._owed)
        hours, units, usd, owed = (round_half_up(amount, decimals=COST_DECIMALS) for amount in amounts)
        return CostRow(
            name=name,
            machine_hours=hours,
            ml_units=units,
            cost_usd=usd,
            owed_usd=owed,
            unpriced=tuple(self._unpriced),
        )


def report_costs(
    runs: Iterable[Run], *, by: str, catalogue: Catalogue, since_s: float = 0.0, until_s: float = float("inf")
) -> CostReport:
    """Adds up what jobs cost.

    Args:
        runs: what they ran.
        by: ``job``, ``day``, or ``label:KEY``.
        catalogue: machines and prices.
        since_s: what ran before is left out, seconds since 1970 UTC.
        until_s: and what ran from then on.

    Raises:
        InvalidInputError: `by` is something else.
        ConfigError: a machine type or a region is not in the catalogue.
    """
    name_of = _naming(by)
    sums: dict[str, _Sum] = {}
    total = _Sum()
    for run in runs:
        for whole in run.usages:
            for usage in _days(_clip(whole, since_s, until_s)) if by == BY_DAY else (_clip(whole, since_s, until_s),):
                if usage.end_time_s > usage.start_time_s:
                    sums.setdefault(name_of(run, usage), _Sum()).add(usage, run, catalogue)
                    total.add(usage, run, catalogue)
    return CostReport(rows=tuple(sums[name].row(name) for name in sorted(sums)), total=total.row("total"))


def _naming(by: str) -> Callable[[Run, ReplicaUsage], str]:
    if by == BY_JOB:
        return lambda run, _usage: run.job
    if by == BY_DAY:
        return lambda _run, usage: _day(usage.start_time_s).strftime("%Y-%m-%d")
    if by.startswith(BY_LABEL) and len(by) > len(BY_LABEL):
        key = by.removeprefix(BY_LABEL)
        return lambda run, _usage: run.labels.get(key, NO_LABEL)
    raise InvalidInputError("costs by what", received=by, allowed="job, day or label:KEY")


def _clip(usage: ReplicaUsage, since_s: float, until_s: float) -> ReplicaUsage:
    return replace(usage, start_time_s=max(usage.start_time_s, since_s), end_time_s=min(usage.end_time_s, until_s))


def _days(usage: ReplicaUsage) -> Iterator[ReplicaUsage]:
    """Cuts an interval at each midnight (UTC)."""
    start_s = usage.start_time_s
    while start_s < usage.end_time_s:
        end_s = min(usage.end_time_s, (_day(start_s) + timedelta(days=1)).timestamp())
        yield replace(usage, start_time_s=start_s, end_time_s=end_s)
        start_s = end_s


def _day(time_s: float) -> datetime:
    return datetime.fromtimestamp(time_s, tz=UTC).replace(hour=0, minute=0, second=0, microsecond=0)
