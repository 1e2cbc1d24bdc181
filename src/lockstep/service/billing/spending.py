"""What projects with a budget have spent: added up as starts end and nodes go, never from the beginning.

A look costs what runs, what has ended since the look before, and the nodes that are not down; what is over is added up
once. Days that are over are kept in the database, so that a service that starts anew reads the present day alone, in
pages, one at each pass. Everything follows from the database, so that each service over it comes to the same.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, final

from lockstep.errors import ConfigError
from lockstep.jobs.billing.budgets import Alert, Budget, Period, alerts_due, why_held
from lockstep.jobs.billing.costs import uses_of
from lockstep.jobs.billing.days import day_name, day_start_s, month_start_s, next_day_s
from lockstep.jobs.billing.node_costs import NodeShare, NodeSlice, NodeUse, microseconds, split_node
from lockstep.jobs.billing.spending import SpendingDays, Spent
from lockstep.jobs.machines.catalogue import Catalogue
from lockstep.jobs.parsing.fields import FOREVER_S
from lockstep.jobs.provisioning import NodeRecord
from lockstep.jobs.scheduling import Quota
from lockstep.service.billing.usages import run_of
from lockstep.service.store import AttemptRecord, EndedStart, JobRecord, JobStore, NodeStore, SpendingStore

LOGGER: Final = logging.getLogger(__name__)

REFRESH_S: Final = 5.0
"""Pause between two looks."""

PAGE_SIZE: Final = 250
"""How many starts that are over are added up at one pass."""

SETTLED_S: Final = 600.0
"""How late something may still be recorded of a node."""

CLOSED_S: Final = 3600.0
"""How long after its end a day is added up for good."""

NUM_EARLIER: Final = 1000
"""How many starts of earlier days are looked through for who had a node last."""


@final
@dataclass(frozen=True, kw_only=True)
class BudgetState:
    """What is spent of a budget in the present day or month.

    Attributes:
        project: whose it is.
        budget: the budget.
        period: whether it is of the day or of the month.
        spent: what was spent in it.
        time_s: up to when, seconds since 1970 UTC.
    """

    project: str
    budget: Budget
    period: Period
    spent: Spent
    time_s: float


@final
@dataclass(frozen=True, kw_only=True)
class _Figures:
    """What is known at one time.

    Attributes:
        time_s: when, seconds since 1970 UTC.
        spent: by project, for the present day and the present month.
        held: the projects that may start nothing, each with the reason.
    """

    time_s: float
    spent: Mapping[str, Mapping[Period, Spent]]
    held: Mapping[str, str]


@final
@dataclass(kw_only=True)
class _Node:
    """A node of which not all is added up.

    Attributes:
        record: as the ledger had it last.
        start_us: from when on it is not; None where nothing is.
        last: uid of the job that had it last before that.
    """

    record: NodeRecord
    start_us: int | None = None
    last: str | None = None

    @property
    def rest(self) -> NodeRecord:
        """The node as if it had come up when what is left to add up begins."""
        if self.start_us is None:
            return self.record
        return replace(self.record, up_time_s=self.start_us / 10**6, asked_for=self.last)


@final
@dataclass(kw_only=True)
class _Loading:
    """The first look, a page at each pass.

    Attributes:
        event: the last end of a start when it began.
        after: the place of the last start that was read.
    """

    event: int
    after: tuple[float, str, int] | None = None


@final
@dataclass(kw_only=True)
class _Books:
    """What has been added up of the days that are not kept in the database.

    Attributes:
        since_s: when the first of them began, seconds since 1970 UTC.
        kept: the days before, as the database has them.
        settled: what is over.
        counted: the starts in it, each with its end.
        uses: what ran on nodes, by node.
        nodes: nodes of which not all is settled, by name.
        gone: nodes of which all is, each with when it was down.
        projects: whose jobs are, by uid.
        looked_s: up to when all nodes that went are in it, seconds since 1970 UTC; None before the first look.
    """

    since_s: float
    kept: SpendingDays
    settled: SpendingDays = field(default_factory=SpendingDays)
    counted: dict[tuple[str, int], float] = field(default_factory=dict[tuple[str, int], float])
    uses: dict[str, list[NodeUse]] = field(default_factory=dict[str, list[NodeUse]])
    nodes: dict[str, _Node] = field(default_factory=dict[str, _Node])
    gone: dict[str, float] = field(default_factory=dict[str, float])
    projects: dict[str, str] = field(default_factory=dict[str, str])
    looked_s: float | None = None


@final
class Spending:
    """Knows what projects have spent, and which of them may start nothing because of it.

    `look` is for one thread at a time; the others read what it found.

    Args:
        store: starts that are over, days, alerts.
        jobs: jobs.
        nodes: the ledger.
        catalogue: machines and prices.
        budgets: by project.
        quotas: by project.

    Attributes:
        budgets: by project.
        projects: those whose spending is added up.
    """

    def __init__(
        self,
        *,
        store: SpendingStore,
        jobs: JobStore,
        nodes: NodeStore,
        catalogue: Catalogue,
        budgets: Mapping[str, Budget],
        quotas: Mapping[str, Quota],
    ) -> None:
        self._store = store
        self._jobs = jobs
        self._nodes = nodes
        self._catalogue = catalogue
        self.budgets = dict(budgets)
        self._quotas = {project: quota for project, quota in quotas.items() if quota.dollars_per_day is not None}
        self.projects = [*dict.fromkeys((*budgets, *self._quotas))]
        self._books: _Books | None = None
        self._loading: _Loading | None = None
        self._event = 0
        self._looked_s: float | None = None
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

    def look(self, *, now_s: float, acts: bool) -> None:
        """Brings the figures up to date, if they are older than `REFRESH_S`; does a page of work at the most.

        Args:
            now_s: seconds since 1970 UTC.
            acts: whether this service is the one that keeps days and raises alerts.
        """
        if self._looked_s is not None and 0 <= now_s - self._looked_s < REFRESH_S:
            return
        self._looked_s = None
        try:
            self._look(now_s, acts=acts)
        except BaseException:  # half of a look may be in the books: they are opened anew, after a pause
            self._books, self._looked_s = None, now_s
            raise

    def _look(self, now_s: float, *, acts: bool) -> None:
        books = self._books
        if books is None:
            books = self._books = self._open(now_s)
            self._loading = _Loading(event=self._store.last_end())
        if self._loading is not None and not self._load(books, self._loading):
            return
        placed = self._jobs.placed_jobs()  # before what has ended: a start may be seen as both, and is counted once
        is_all = self._take_in_ended(books)
        present = self._present(books, placed, now_s=now_s)
        if acts:
            self._close(books, present, now_s=now_s)
        elif next_day_s(books.since_s) + 2 * CLOSED_S <= now_s:  # whoever acts has kept the day by now
            self._books = None
        books.looked_s = now_s
        self._figures = self._figure(books, present, now_s=now_s)
        if acts:
            self._raise_alerts(self._figures)
        self._looked_s = now_s if is_all else None

    def refuses(self, project: str) -> str | None:
        """Says why no job of a project could ever start; None where one could."""
        budget = self.budgets.get(project)
        return None if budget is None else budget.refuses(project)

    def states(self) -> list[BudgetState]:
        """Returns the state of each budget, by project and period; nothing while the figures are not known yet."""
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

    def _open(self, now_s: float) -> _Books:
        """Reads the days that are kept, and finds the first one that is not."""
        today_s, month_s = day_start_s(now_s), month_start_s(now_s)
        monthly = [project for project, budget in self.budgets.items() if Period.MONTH in budget.usd]
        found = self._store.days_since(day_name(month_s))
        kept = SpendingDays()
        since_s = month_s if monthly else today_s
        while since_s < today_s and all((project, day_name(since_s)) in found for project in monthly):
            since_s = next_day_s(since_s)
        for (project, day), spent in found.items():
            if day < day_name(since_s):
                kept.add(spent, project=project, day=day)
        return _Books(since_s=since_s, kept=kept)

    def _load(self, books: _Books, loading: _Loading) -> bool:
        """Adds up a page of what was over before the first look; returns whether that was the last one."""
        page = self._store.starts_since(books.since_s, after=loading.after, limit=PAGE_SIZE)
        self._take_in(books, page)
        if len(page) == PAGE_SIZE:
            loading.after = page[-1].place
            return False
        self._take_in_earlier(books)
        self._event, self._loading = loading.event, None
        return True

    def _take_in_ended(self, books: _Books) -> bool:
        """Adds up a page of what has ended since the look before; returns whether that was all."""
        ends = self._store.ends_after(self._event, limit=PAGE_SIZE)
        if ends:
            self._take_in(books, self._store.starts_of({uid for _, uid in ends}))
            self._event = ends[-1][0]
        return len(ends) < PAGE_SIZE

    def _take_in(self, books: _Books, starts: Sequence[EndedStart]) -> None:
        new = [start for start in starts if (start.uid, start.attempt.attempt) not in books.counted]
        jobs = {job.uid: job for job in self._jobs.named({start.uid for start in new})}
        for start in new:
            books.counted[start.uid, start.attempt.attempt] = start.attempt.end_time_s
            job = jobs[start.uid]
            books.projects[job.uid] = job.project
            if start.attempt.machines or job.project in self.projects:
                self._add(books.settled, books, _without_present(job), [start.attempt], uses=books.uses)

    def _take_in_earlier(self, books: _Books) -> None:
        """Finds who had those nodes last that were there before the first day: their idle time is his."""
        there = {node.name for node in self._nodes.between(since_s=books.since_s, until_s=books.since_s)}
        for start in self._store.last_starts_before(books.since_s, limit=NUM_EARLIER) if there else ():
            if there.intersection(start.attempt.all_machines):
                there.difference_update(start.attempt.all_machines)
                for job in self._jobs.named({start.uid}):
                    books.projects[job.uid] = job.project
                    self._add(SpendingDays(), books, _without_present(job), [start.attempt], uses=books.uses)

    def _add(
        self,
        days: SpendingDays,
        books: _Books,
        job: JobRecord,
        attempts: Sequence[AttemptRecord],
        *,
        uses: dict[str, list[NodeUse]],
        now_s: float = 0.0,
    ) -> None:
        """Adds what a job ran: some starts that are over, and the one that is not, if it has one."""
        try:
            run = run_of(job, attempts=attempts, catalogue=self._catalogue, now_s=now_s)
            if job.project in self.projects:
                days.add_usages(
                    run.usages,
                    project=job.project,
                    is_simulated=run.simulated,
                    since_s=books.since_s,
                    catalogue=self._catalogue,
                )
            for use in uses_of([run], catalogue=self._catalogue):
                uses.setdefault(use.machine, []).append(use)
        except ConfigError as error:
            LOGGER.error("what job %s cost cannot be said: %s", job.job_id, error)
            unknown = Spent(unpriced=(f"job {job.job_id}, which this version cannot read",))
            days.add(unknown, project=job.project, day=day_name(max(books.since_s, job.create_time_s)))

    def _present(self, books: _Books, placed: Iterable[JobRecord], *, now_s: float) -> SpendingDays:
        """Adds up what is not over: what runs, and the nodes that are not down."""
        days = SpendingDays()
        uses: dict[str, list[NodeUse]] = {}
        for job in placed:
            books.projects[job.uid] = job.project
            if job.run_start_time_s is not None and (job.uid, job.attempt) not in books.counted:
                self._add(days, books, job, (), uses=uses, now_s=now_s)
        since_s = books.since_s if books.looked_s is None else max(books.since_s, books.looked_s - CLOSED_S)
        pieces: list[NodeSlice] = []
        settled: list[NodeSlice] = []
        # Those that went earlier are settled once nothing runs on them any more, as far as it is known.
        nodes = {name: node.record for name, node in books.nodes.items()}
        nodes |= {node.name: node for node in self._nodes.between(since_s=since_s, until_s=now_s)}
        for node in nodes.values():
            if node.name not in books.gone:
                over, rest = self._divide(books, node, uses.get(node.name, ()), now_s=now_s)
                settled += over
                pieces += rest
        self._name_projects(books, (*settled, *pieces))
        for into, found in ((books.settled, settled), (days, pieces)):
            for piece in found:
                project = None if piece.job is None else books.projects.get(piece.job)
                clipped = piece.clip(since_us=microseconds(books.since_s), until_us=microseconds(FOREVER_S))
                if clipped is not None and project in self.projects:
                    into.add_slice(clipped, project=project)
        return days

    def _divide(
        self, books: _Books, record: NodeRecord, running: Sequence[NodeUse], *, now_s: float
    ) -> tuple[list[NodeSlice], list[NodeSlice]]:
        """Divides what is left of a node into what is settled, which is added up for good, and what is not."""
        node = books.nodes.setdefault(record.name, _Node(record=record))
        node.record = record
        ended = books.uses.get(record.name, [])
        pieces = list(split_node(node.rest, uses=[*ended, *running], now_s=now_s))
        settled_us = microseconds(now_s - SETTLED_S)
        if record.down_time_s is not None and not running and microseconds(record.down_time_s) < settled_us:
            books.gone[record.name] = record.down_time_s
            del books.nodes[record.name]
            books.uses.pop(record.name, None)
            return pieces, []
        # All before a while that it stood unused in: nothing that began earlier goes on, and whose it is, is known.
        unused = [n for n, piece in enumerate(pieces) if piece.share is not NodeShare.USED]
        cuts = [number for number in unused if number > 0 and pieces[number].start_us <= settled_us]
        if not cuts:
            return [], pieces
        cut = pieces[cuts[-1]]
        node.start_us, node.last = cut.start_us, cut.job
        books.uses[record.name] = [use for use in ended if use.end_us > cut.start_us]
        return pieces[: cuts[-1]], pieces[cuts[-1] :]

    def _name_projects(self, books: _Books, pieces: Iterable[NodeSlice]) -> None:
        """Looks up whose those jobs are that nodes were asked for and that were not seen yet."""
        missing = {piece.job for piece in pieces if piece.job is not None} - books.projects.keys()
        for job in self._jobs.named(missing):
            books.projects[job.uid] = job.project

    def _close(self, books: _Books, present: SpendingDays, *, now_s: float) -> None:
        """Keeps the days for good that have been over for long enough."""
        while next_day_s(books.since_s) + CLOSED_S <= now_s:
            day = day_name(books.since_s)
            spent = {
                project: books.settled.spent(project, period=day) + present.spent(project, period=day)
                for project in self.projects
            }
            for project, found in self._store.close_day(day, spent=spent).items():
                books.kept.add(found, project=project, day=day)
            books.since_s = next_day_s(books.since_s)
            first = day_name(books.since_s)
            books.settled.drop_before(first)
            present.drop_before(first)
            books.kept.drop_before(day_name(month_start_s(now_s)))
            books.counted = {start: end_s for start, end_s in books.counted.items() if end_s >= books.since_s}
            books.gone = {name: down_s for name, down_s in books.gone.items() if down_s >= books.since_s}
            books.uses = {name: uses for name, uses in books.uses.items() if name in books.nodes}
            books.projects.clear()

    def _figure(self, books: _Books, present: SpendingDays, *, now_s: float) -> _Figures:
        names = {period: period.name_of(now_s) for period in Period}
        spent = {
            project: {
                period: sum(
                    (days.spent(project, period=name) for days in (books.kept, books.settled, present)), Spent()
                )
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


def _without_present(job: JobRecord) -> JobRecord:
    """Returns a job without what it does now: of its machines and prices alone starts that are over have need."""
    return replace(job, run_start_time_s=None)


def open_spending(
    *,
    store: SpendingStore,
    jobs: JobStore,
    nodes: NodeStore,
    catalogue: Catalogue,
    budgets: Mapping[str, Budget],
    quotas: Mapping[str, Quota],
) -> Spending | None:
    """Returns what knows the spending of the projects that have a limit of money; None where none has."""
    if not budgets and all(quota.dollars_per_day is None for quota in quotas.values()):
        return None
    return Spending(store=store, jobs=jobs, nodes=nodes, catalogue=catalogue, budgets=budgets, quotas=quotas)
