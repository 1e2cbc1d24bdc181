"""What projects spend, by day (UTC): sums of fractions, rounded by whoever shows them."""

from __future__ import annotations

from collections.abc import Iterable
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
    """What a project spent in a while.

    Attributes:
        owed_usd: what is owed, in US dollars.
        simulated_usd: what simulated machines would have cost; nothing is owed for them.
        unpriced: machines in words that have no price: they count as nothing.
    """

    owed_usd: Fraction = Fraction(0)
    simulated_usd: Fraction = Fraction(0)
    unpriced: tuple[str, ...] = ()

    def __add__(self, other: Spent) -> Spent:
        """Returns both together."""
        return Spent(
            owed_usd=self.owed_usd + other.owed_usd,
            simulated_usd=self.simulated_usd + other.simulated_usd,
            unpriced=tuple(dict.fromkeys((*self.unpriced, *other.unpriced))),
        )

    def usd(self, *, counts_simulated: bool) -> Fraction:
        """Returns it in US dollars, with or without what simulated machines would have cost."""
        return self.owed_usd + self.simulated_usd if counts_simulated else self.owed_usd


@final
class SpendingDays:
    """Adds up what projects spent, day by day. Not thread-safe."""

    def __init__(self) -> None:
        self._days: dict[str, dict[str, Spent]] = {}

    def add(self, spent: Spent, *, project: str, day: str) -> None:
        """Adds what a project spent on a day."""
        days = self._days.setdefault(project, {})
        days[day] = days.get(day, Spent()) + spent

    def add_usages(
        self, usages: Iterable[ReplicaUsage], *, project: str, is_simulated: bool, since_s: float, catalogue: Catalogue
    ) -> None:
        """Adds what replicas ran that are on no node of the ledger; those that are cost by their nodes.

        Args:
            usages: intervals in RUNNING.
            project: whose.
            is_simulated: whether nothing is owed for their machines.
            since_s: what ran before is left out, seconds since 1970 UTC.
            catalogue: machines and prices.

        Raises:
            ConfigError: a machine type or a region is not in the catalogue.
        """
        for whole in usages:
            if whole.machine:
                continue
            usd = catalogue.usd_per_hour(whole.machine_type, accelerator=whole.accelerator, region=whole.region)
            words = describe_machine(whole.machine_type, accelerator=whole.accelerator)
            for usage in cut_usage(whole, since_s=since_s, by_day=True):
                spent = _spent(None if usd is None else usd * usage.hours, is_simulated=is_simulated, unpriced=words)
                self.add(spent, project=project, day=day_name(usage.start_time_s))

    def add_slice(self, piece: NodeSlice, *, project: str) -> None:
        """Adds some of a node's time."""
        words = f"node {piece.node.machine or piece.node.node_type}"
        for part in cut_slice_by_day(piece):
            spent = _spent(part.cost_usd, is_simulated=piece.node.simulated, unpriced=words)
            self.add(spent, project=project, day=day_name(part.start_us / 10**6))

    def spent(self, project: str, *, period: str) -> Spent:
        """Returns what a project spent in a day, such as ``2026-11-22``, or a month, such as ``2026-11``."""
        days = self._days.get(project, {})
        return sum((spent for day, spent in days.items() if day.startswith(period)), Spent())

    def drop_before(self, day: str) -> None:
        """Forgets all days before one."""
        for days in self._days.values():
            for earlier in [name for name in days if name < day]:
                del days[earlier]


def _spent(usd: Fraction | None, *, is_simulated: bool, unpriced: str) -> Spent:
    if usd is None:
        return Spent(unpriced=(unpriced,))
    return Spent(simulated_usd=usd) if is_simulated else Spent(owed_usd=usd)
