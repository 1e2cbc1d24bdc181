"""Sums of what projects spend, by day (UTC). Amounts are fractions: nothing is rounded before it is shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import final

from lockstep.jobs.billing.bills import ReplicaUsage
from lockstep.jobs.billing.days import cut_slice_by_day, cut_usage, day_name
from lockstep.jobs.billing.node_costs import NodeSlice
from lockstep.jobs.input.gangs import describe_machine
from lockstep.jobs.machines.catalogue import Catalogue


@final
@dataclass(frozen=True, kw_only=True)
class Spent:
    """An amount that a project spent.

    Attributes:
        owed_usd: the amount that is owed, in US dollars.
        simulated_usd: the list price of simulated machines, in US dollars; it is not owed.
        unpriced: descriptions of machines without a price; their cost is in neither amount.
    """

    owed_usd: Fraction = Fraction(0)
    simulated_usd: Fraction = Fraction(0)
    unpriced: tuple[str, ...] = ()

    def __add__(self, other: Spent) -> Spent:
        """Returns the sum of both."""
        return Spent(
            owed_usd=self.owed_usd + other.owed_usd,
            simulated_usd=self.simulated_usd + other.simulated_usd,
            unpriced=tuple(dict.fromkeys((*self.unpriced, *other.unpriced))),
        )

    def usd(self, *, counts_simulated: bool) -> Fraction:
        """Returns the amount in US dollars, with or without the list price of simulated machines."""
        return self.owed_usd + self.simulated_usd if counts_simulated else self.owed_usd


@final
class SpendingDays:
    """Sums what projects spend, day by day. Not thread-safe.

    Args:
        days: amounts to begin with, by project and day, such as ``2026-11-22``.
    """

    def __init__(self, days: Mapping[tuple[str, str], Spent] | None = None) -> None:
        self._days = dict(days or {})

    @property
    def days(self) -> Mapping[tuple[str, str], Spent]:
        """The sums by project and day."""
        return self._days

    def add(self, spent: Spent, *, project: str, day: str) -> None:
        """Adds an amount that a project spent on a day."""
        self._days[project, day] = self._days.get((project, day), Spent()) + spent

    def add_usages(
        self, usages: Iterable[ReplicaUsage], *, project: str, is_simulated: bool, catalogue: Catalogue
    ) -> None:
        """Adds the list price of what replicas used. Usages of a node of the ledger are skipped: the node has a cost.

        Args:
            usages: intervals in RUNNING.
            project: the project of the job.
            is_simulated: whether the machines are simulated, so that nothing is owed.
            catalogue: machines and prices.

        Raises:
            ConfigError: If a machine type or a region is not in the catalogue.
        """
        for whole in usages:
            if whole.machine:
                continue
            usd = catalogue.usd_per_hour(whole.machine_type, accelerator=whole.accelerator, region=whole.region)
            words = describe_machine(whole.machine_type, accelerator=whole.accelerator)
            for usage in cut_usage(whole, by_day=True):
                spent = _spent(None if usd is None else usd * usage.hours, is_simulated=is_simulated, unpriced=words)
                self.add(spent, project=project, day=day_name(usage.start_time_s))

    def add_slice(self, piece: NodeSlice, *, project: str) -> None:
        """Adds the cost of a slice of a node's time."""
        words = f"node {piece.node.machine or piece.node.node_type}"
        for part in cut_slice_by_day(piece):
            spent = _spent(part.cost_usd, is_simulated=piece.node.simulated, unpriced=words)
            self.add(spent, project=project, day=day_name(part.start_us / 10**6))

    def spent(self, project: str, *, period: str) -> Spent:
        """Returns what a project spent in a day, such as ``2026-11-22``, or in a month, such as ``2026-11``."""
        found = (spent for (name, day), spent in self._days.items() if name == project and day.startswith(period))
        return sum(found, Spent())


def _spent(usd: Fraction | None, *, is_simulated: bool, unpriced: str) -> Spent:
    if usd is None:
        return Spent(unpriced=(unpriced,))
    return Spent(simulated_usd=usd) if is_simulated else Spent(owed_usd=usd)
