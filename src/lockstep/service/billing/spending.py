"""Knows what projects with a budget or a quota have spent, and which of them may start nothing because of it.

Each refresh sums what running jobs and nodes cost up to now, and adds the totals of what is final, which the database
keeps by project and day. What became final since the last refresh is added to those totals. Nothing is kept in memory
between two refreshes but the figures, so every service over one database computes the same.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

from lockstep.errors import ConfigError
from lockstep.jobs.billing.budgets import Alert, Budget, Period, alerts_due, why_held
from lockstep.jobs.billing.costs import node_uses
from lockstep.jobs.billing.days import day_name, month_start_s
from lockstep.jobs.billing.node_costs import NodeShare, NodeSlice, NodeUse, microseconds, split_node
from lockstep.jobs.billing.spending import SpendingDays, Spent
from lockstep.jobs.machines.catalogue import Catalogue
from lockstep.jobs.scheduling import Quota
from lockstep.service.billing.usages import job_usage
from lockstep.service.store import (
    AttemptRecord,
    JobRecord,
    SpendingSnapshot,
    SpendingStore,
    SummedNode,
    UnsummedNode,
)

LOGGER: Final = logging.getLogger(__name__)

REFRESH_S: Final = 5.0
"""Pause between two refreshes."""

PAGE_SIZE: Final = 250
"""Maximum number of ended attempts that one refresh adds to the totals."""

SETTLED_S: Final = 600.0
"""Age after which nothing new is recorded of a node's time. Younger time is not added to the totals."""


@final
@dataclass(frozen=True, kw_only=True)
class BudgetState:
    """What is spent of a budget in the present day or month.

    Attributes:
        project: the project that has the budget.
        budget: the budget.
        period: whether the state is of the day or of the month.
        spent: the amount that was spent in it.
        time_s: the time up to which it was summed, in seconds since 1970 UTC.
    """

    project: str
    budget: Budget
    period: Period
    spent: Spent
    time_s: float


@final
@dataclass(frozen=True, kw_only=True)
class _Figures:
    """The result of a refresh.

    Attributes:
        time_s: the time of the refresh, in seconds since 1970 UTC.
        spent: the amounts of the present day and month by project.
        held: the projects that may start nothing, each with the reason.
    """

    time_s: float
    spent: Mapping[str, Mapping[Period, Spent]]
    held: Mapping[str, str]


@final
class Spending:
    """Knows what projects have spent, and which of them may start nothing because of it.

    `refresh` is for one thread at a time. The other methods may be called from any thread.

    Args:
        store: totals, and what is not part of them.
        catalogue: machines and prices.
        budgets: budgets by project.
        quotas: quotas by project.

    Attributes:
        budgets: budgets by project.
        projects: the projects that have a budget, or a quota of money.
    """

    def __init__(
        self,
        *,
        store: SpendingStore,
        catalogue: Catalogue,
        budgets: Mapping[str, Budget],
        quotas: Mapping[str, Quota],
    ) -> None:
        self._store = store
        self._catalogue = catalogue
        self.budgets = dict(budgets)
        self._quotas = {project: quota for project, quota in quotas.items() if quota.dollars_per_day is not None}
        self.projects = [*dict.fromkeys((*budgets, *self._quotas))]
        self._refresh_time_s: float | None = None
        self._figures: _Figures | None = None
        self._alerts: set[Alert] = set()

    @property
    def held(self) -> Mapping[str, str]:
        """The projects that may start nothing for now, each with the reason in words."""
        if self._figures is not None:
            return self._figures.held
        return {
            project: f"budget of project {project}: what it has spent is being added up"
            for project in self.projects
            if project in self._quotas or self.budgets[project].stop_at_limit
        }

    def refresh(self, *, now_s: float, acts: bool) -> None:
        """Brings the figures up to date, if they are older than `REFRESH_S`.

        If more than `PAGE_SIZE` attempts have to be added to the totals, this adds that many and leaves the figures as
        they are. The next call goes on without a pause.

        Args:
            now_s: the present time, in seconds since 1970 UTC.
            acts: whether this service is the one that writes totals and raises alerts.
        """
        if self._refresh_time_s is not None and 0 <= now_s - self._refresh_time_s < REFRESH_S:
            return
        self._refresh_time_s = now_s
        snapshot = self._store.snapshot(since_day=day_name(month_start_s(now_s)), limit=PAGE_SIZE)
        final_days, uses = self._sum_attempts(snapshot)
        if len(snapshot.attempts) == PAGE_SIZE:
            if acts:
                self._store.add(final_days.days, attempts=snapshot.attempts, uses=uses)
                self._refresh_time_s = None
            return
        present, running = self._sum_running(snapshot, now_s=now_s)
        summed = _sum_nodes(snapshot, uses=(uses, running), final_days=final_days, present=present, now_s=now_s)
        self._figures = self._figure((SpendingDays(snapshot.totals), final_days, present), now_s=now_s)
        if acts:
            self._store.add(final_days.days, attempts=snapshot.attempts, uses=uses, nodes=summed)
            self._raise_alerts(self._figures)

    def refuses(self, project: str) -> str | None:
        """Says why no job of a project could ever start; None where one could."""
        budget = self.budgets.get(project)
        return None if budget is None else budget.refuses(project)

    def states(self) -> list[BudgetState]:
        """Returns the state of each budget, by project and period; nothing before the first figures."""
        figures = self._figures
        if figures is None:
            return []
        return [
            BudgetState(
                project=project,
                budget=budget,
                period=period,
                spent=figures.spent[project][period],
                time_s=figures.time_s,
            )
            for project, budget in self.budgets.items()
            for period in budget.usd
        ]

    def _sum_attempts(self, snapshot: SpendingSnapshot) -> tuple[SpendingDays, list[NodeUse]]:
        """Sums ended attempts; returns their cost, and what they used of nodes that are not summed yet."""
        days = SpendingDays()
        uses: list[NodeUse] = []
        nodes = {unsummed.node.name for unsummed in snapshot.nodes}
        for ended in snapshot.attempts:
            job = replace(ended.job, run_start_time_s=None)  # without the attempt that runs
            uses += self._add(days, job, [ended.attempt])
        return days, [use for use in uses if use.machine in nodes]

    def _sum_running(self, snapshot: SpendingSnapshot, *, now_s: float) -> tuple[SpendingDays, list[NodeUse]]:
        """Sums running attempts up to now; returns their cost, and what they use of nodes."""
        days = SpendingDays()
        uses: list[NodeUse] = []
        for job in snapshot.placed:
            if job.run_start_time_s is not None:
                uses += self._add(days, job, (), now_s=now_s)
        return days, uses

    def _add(
        self, days: SpendingDays, job: JobRecord, attempts: Sequence[AttemptRecord], *, now_s: float = 0.0
    ) -> list[NodeUse]:
        """Adds ended attempts of a job, and its running one; returns what they used of nodes."""
        try:
            used = job_usage(job, attempts=attempts, catalogue=self._catalogue, now_s=now_s)
            days.add_usages(used.usages, project=job.project, is_simulated=used.simulated, catalogue=self._catalogue)
            return list(node_uses([used], catalogue=self._catalogue))
        except ConfigError as error:
            LOGGER.error("what job %s cost cannot be said: %s", job.job_id, error)
            unknown = Spent(unpriced=(f"job {job.job_id}, which this version cannot read",))
            last_s = max([attempt.end_time_s for attempt in attempts], default=now_s)
            days.add(unknown, project=job.project, day=day_name(last_s))
            return []

    def _figure(self, sums: Collection[SpendingDays], *, now_s: float) -> _Figures:
        names = {period: period.name_of(now_s) for period in Period}
        spent = {
            project: {
                period: sum((days.spent(project, period=name) for days in sums), Spent())
                for period, name in names.items()
            }
            for project in self.projects
        }
        held = {
            project: reason
            for project, found in spent.items()
            if (
                reason := why_held(
                    project=project,
                    budget=self.budgets.get(project),
                    quota=self._quotas.get(project),
                    spent=found.__getitem__,
                    now_s=now_s,
                )
            )
        }
        return _Figures(time_s=now_s, spent=spent, held=held)

    def _raise_alerts(self, figures: _Figures) -> None:
        """Raises each alert that is due and was not raised yet, by this service or another."""
        periods = {period.name_of(figures.time_s) for period in Period}
        due = [
            found
            for project, budget in self.budgets.items()
            for found in alerts_due(
                budget, project=project, spent=figures.spent[project].__getitem__, now_s=figures.time_s
            )
        ]
        self._alerts = {alert for alert in self._alerts if alert.period in periods}
        for alert, text in due:
            if alert not in self._alerts:
                if self._store.raise_alert(alert, text=text, time_s=figures.time_s):
                    LOGGER.warning("%s", text)
                self._alerts.add(alert)


def _sum_nodes(
    snapshot: SpendingSnapshot,
    *,
    uses: tuple[Iterable[NodeUse], Iterable[NodeUse]],
    final_days: SpendingDays,
    present: SpendingDays,
    now_s: float,
) -> list[SummedNode]:
    """Sums the time of nodes that is not part of the totals.

    Args:
        snapshot: the nodes.
        uses: what attempts used that ended since the last refresh, and what running ones use.
        final_days: gets the cost that is final.
        present: gets the cost that is not.
        now_s: the present time, in seconds since 1970 UTC.

    Returns:
        The nodes of which some time became final.
    """
    ended, running = (_by_machine(some) for some in uses)
    summed: list[SummedNode] = []
    for unsummed in snapshot.nodes:
        name = unsummed.node.name
        node = replace(unsummed, uses=(*unsummed.uses, *ended.get(name, ())))
        pieces, rest, mark = divide_node(node, running=running.get(name, ()), now_s=now_s)
        if mark is not None:
            summed.append(mark)
        for into, found in ((final_days, pieces), (present, rest)):
            for piece in found:
                project = None if piece.job is None else snapshot.projects.get(piece.job)
                if project is not None:
                    into.add_slice(piece, project=project)
    return summed


def divide_node(
    node: UnsummedNode, *, running: Sequence[NodeUse], now_s: float
) -> tuple[list[NodeSlice], list[NodeSlice], SummedNode | None]:
    """Divides the time of a node that is not part of the totals into what is final and what is not.

    Args:
        node: the node.
        running: what running attempts use of it.
        now_s: the present time, in seconds since 1970 UTC.

    Returns:
        The final slices, the other slices, and what to record of the node; None if nothing is final.
    """
    pieces = list(split_node(node.rest, uses=[*node.uses, *running], now_s=now_s))
    settled_us = microseconds(now_s - SETTLED_S)
    down_s = node.node.down_time_s
    if down_s is not None and not running and microseconds(down_s) < settled_us:
        return pieces, [], SummedNode(name=node.node.name)
    # What lies before a slice that nobody used is final: no attempt goes on over it, and the last job is known.
    unused = [number for number, piece in enumerate(pieces) if piece.share is not NodeShare.USED]
    cuts = [number for number in unused if number > 0 and pieces[number].start_us <= settled_us]
    if not cuts:
        return [], pieces, None
    cut = pieces[cuts[-1]]
    mark = SummedNode(name=node.node.name, end_us=cut.start_us, last_job=cut.job)
    return pieces[: cuts[-1]], pieces[cuts[-1] :], mark


def _by_machine(uses: Iterable[NodeUse]) -> dict[str, list[NodeUse]]:
    found: dict[str, list[NodeUse]] = {}
    for use in uses:
        found.setdefault(use.machine, []).append(use)
    return found


def open_spending(
    *,
    store: SpendingStore,
    catalogue: Catalogue,
    budgets: Mapping[str, Budget],
    quotas: Mapping[str, Quota],
) -> Spending | None:
    """Returns the spending of the projects that have a budget or a quota of money; None if no project has one."""
    if not budgets and all(quota.dollars_per_day is None for quota in quotas.values()):
        return None
    return Spending(store=store, catalogue=catalogue, budgets=budgets, quotas=quotas)
