"""The costs of many jobs by job, day, model or label, from the same recorded intervals as each job's bill.

Sums are exact. Each row, and the total, is rounded once to `COST_DECIMALS` (half up). The bill of a job rounds its ML
units to two decimals first, as the contract reports them, so the row of a job may differ by that.

Of a prediction server, it is known for how long it had no request, but not when. If only a part of its time is in a
row, that time is divided evenly.

A report has two measures. The usages of replicas have a list price. The nodes of the ledger cost from up to down,
whether a job used them or not, and that is what is owed for them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Final, final

from lockstep.errors import InvalidInputError
from lockstep.jobs.billing.bills import COST_DECIMALS, HOUR_US, LINE_DECIMALS, ReplicaUsage, round_half_up
from lockstep.jobs.billing.days import cut_slice_by_day, cut_usage, day_name
from lockstep.jobs.billing.node_costs import NodeShare, NodeSlice, NodeUse, microseconds, split_nodes
from lockstep.jobs.billing.served_models import ServedModel
from lockstep.jobs.billing.storage_costs import StoredSpan
from lockstep.jobs.input.gangs import describe_machine
from lockstep.jobs.machines.catalogue import Catalogue, StoragePrice
from lockstep.jobs.parsing.fields import FOREVER_S
from lockstep.jobs.provisioning import NodeRecord

BY_JOB: Final = "job"
BY_DAY: Final = "day"
BY_PROJECT: Final = "project"
BY_NODE_TYPE: Final = "node-type"
BY_MODEL: Final = "model"
BY_VERSION: Final = "version"
BY_LABEL: Final = "label:"
SECOND_DECIMALS: Final = 3
NO_LABEL: Final = "(none)"
"""The row of jobs without such a label or model, and of costs that belong to no job."""

BUCKET: Final = "(bucket)"
"""The row of the bucket's storage in a report by node type."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class JobUsage:
    """What the replicas of one job used.

    Attributes:
        uid: the service's identifier of the job.
        project: the project of the job.
        job: the name of the job.
        labels: the labels of the job.
        simulated: whether the machines are simulated, so that nothing is owed.
        usages: intervals in RUNNING; those of running replicas end now.
        busy_s: for how long a prediction server had at least one request, in seconds; None for other jobs.
        served: the model that a prediction server or a batch prediction works for; None for other jobs.
    """

    uid: str
    project: str
    job: str
    labels: Mapping[str, str]
    simulated: bool
    usages: tuple[ReplicaUsage, ...]
    busy_s: float | None = None
    served: ServedModel | None = None

    @property
    def unused_share(self) -> Fraction | None:
        """The share of its time in which a prediction server had no request; None for other jobs."""
        if self.busy_s is None:
            return None
        whole = sum((usage.hours for usage in self.usages), Fraction(0))
        busy = Fraction(microseconds(self.busy_s), 3600 * 10**6)
        return max(Fraction(0), 1 - busy / whole) if whole else Fraction(1)


@final
@dataclass(frozen=True, kw_only=True)
class NodeAmount:
    """An amount of nodes' time.

    Attributes:
        length_s: the length in seconds of whole nodes, to three decimals (half up).
        cost_usd: the cost of priced nodes in US dollars.
    """

    length_s: Decimal
    cost_usd: Decimal


@final
@dataclass(frozen=True, kw_only=True)
class CostRow:
    """One row of a report.

    Attributes:
        name: the job, the day (UTC, such as 2026-11-22), the project, the node type, the model, the version with its
            model (``digits/v1``), or the value of the label. In a report of all projects, a model has its project, too.
        machine_hours: the running time of all replicas together, in hours.
        ml_units: the ML units of priced machines.
        cost_usd: their list price, in US dollars.
        owed_usd: the amount owed, in US dollars: the cost of nodes in the ledger, and the list price of other machines.
            Nothing is owed for simulated machines.
        nodes: the cost of nodes in the ledger, by what their time was for.
        stored_gib_months: what the jobs stored in the bucket, in GiB months of 730 hours, to six decimals.
        stored_usd: the cost of that storage, in US dollars; None if it is unpriced. It is in no other sum.
        server_hours: the part of `machine_hours` that is of prediction servers.
        unused_hours: the part of `server_hours` in which they had no request.
        unused_usd: the list price of that part, in US dollars.
        unpriced: descriptions of machines without a price; their cost is in no sum.
        sources: the sources of the nodes' prices.
    """

    name: str
    machine_hours: Decimal
    ml_units: Decimal
    cost_usd: Decimal
    owed_usd: Decimal
    nodes: Mapping[NodeShare, NodeAmount]
    stored_gib_months: Decimal
    stored_usd: Decimal | None
    server_hours: Decimal = Decimal(0)
    unused_hours: Decimal = Decimal(0)
    unused_usd: Decimal = Decimal(0)
    unpriced: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()


@final
@dataclass(frozen=True, kw_only=True)
class CostReport:
    """The costs of an interval.

    Attributes:
        rows: the rows, sorted by name.
        total: the sum of everything.
        storage_source: the source of the bucket's storage price; "" if there is none.
    """

    rows: tuple[CostRow, ...]
    total: CostRow
    storage_source: str = ""


@final
@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class _Rate:
    """The price of one hour of a replica, found once for all replicas with such a machine.

    Attributes:
        words: a description of the machine.
        units: its ML units; None if it is unpriced.
        usd: its price in US dollars; 0 if it is unpriced.
    """

    words: str
    units: Fraction | None
    usd: Fraction


@final
class _Rates:
    """Finds the rates of machines.

    Args:
        catalogue: machines and prices.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._found: dict[Hashable, _Rate] = {}

    def of(self, usage: ReplicaUsage) -> _Rate:
        asked = usage.accelerator
        key = (usage.machine_type, usage.region, None if asked is None else (asked.type, asked.count))
        found = self._found.get(key)
        if found is None:
            units = self._catalogue.units_per_hour(usage.machine_type, accelerator=asked, region=usage.region)
            usd = Fraction(0) if units is None else units * self._catalogue.ml_unit_usd(usage.region)
            words = describe_machine(usage.machine_type, accelerator=asked)
            found = self._found[key] = _Rate(words=words, units=units, usd=usd)
        return found


_Kind = tuple[_Rate, bool, Fraction | None]
"""What time is summed by: its rate, whether it is owed, and the unused share of a prediction server."""


@final
@dataclass(kw_only=True, slots=True)
class _Sum:
    """A sum without rounding. Times are summed as whole numbers; the fractions come at the end, once for each kind."""

    length_us: dict[_Kind, int] = field(default_factory=dict[_Kind, int])
    gib_months: Fraction = Fraction(0)
    storage_price: StoragePrice | None = None
    node_hours: dict[NodeShare, Fraction] = field(default_factory=dict[NodeShare, Fraction])
    node_usd: dict[NodeShare, Fraction] = field(default_factory=dict[NodeShare, Fraction])
    node_owed: Fraction = Fraction(0)
    unpriced_nodes: list[str] = field(default_factory=list[str])
    sources: dict[str, None] = field(default_factory=dict[str, None])

    def add(self, length_us: int, *, kind: _Kind) -> None:
        self.length_us[kind] = self.length_us.get(kind, 0) + length_us

    def add_node(self, piece: NodeSlice) -> None:
        self.node_hours[piece.share] = self.node_hours.get(piece.share, Fraction(0)) + piece.hours
        usd = piece.cost_usd
        if usd is None:
            self.unpriced_nodes.append(f"node {piece.node.machine or piece.node.node_type}")
            return
        self.sources[piece.node.price_source] = None
        self.node_usd[piece.share] = self.node_usd.get(piece.share, Fraction(0)) + usd
        self.node_owed += 0 if piece.node.simulated else usd

    def row(self, name: str) -> CostRow:
        hours, units, usd, server_hours, unused_hours, unused_usd = [Fraction(0)] * 6
        owed = self.node_owed
        unpriced: dict[str, None] = {}
        for (rate, is_owed, unused_share), length_us in self.length_us.items():
            some = Fraction(length_us, HOUR_US)
            hours += some
            if unused_share is not None:
                server_hours += some
                unused_hours += some * unused_share
            if rate.units is None:
                unpriced[rate.words] = None
                continue
            some_usd = rate.usd * some
            units += rate.units * some
            usd += some_usd
            owed += some_usd if is_owed else 0
            unused_usd += some_usd * (unused_share or 0)
        unpriced |= dict.fromkeys(self.unpriced_nodes)
        return CostRow(
            name=name,
            machine_hours=_rounded(hours),
            ml_units=_rounded(units),
            cost_usd=_rounded(usd),
            owed_usd=_rounded(owed),
            nodes={share: self._node_amount(share) for share in NodeShare} if self.node_hours else _NO_NODES,
            stored_gib_months=round_half_up(self.gib_months, decimals=LINE_DECIMALS),
            stored_usd=None
            if self.storage_price is None
            else _rounded(self.gib_months * self.storage_price.usd_per_gib_month),
            server_hours=_rounded(server_hours),
            unused_hours=_rounded(unused_hours),
            unused_usd=_rounded(unused_usd),
            unpriced=tuple(unpriced),
            sources=tuple(self.sources),
        )

    def _node_amount(self, share: NodeShare) -> NodeAmount:
        return _node_amount(self.node_hours.get(share, Fraction(0)), usd=self.node_usd.get(share, Fraction(0)))


def _node_amount(hours: Fraction, *, usd: Fraction) -> NodeAmount:
    return NodeAmount(length_s=round_half_up(hours * 3600, decimals=SECOND_DECIMALS), cost_usd=_rounded(usd))


def node_uses(jobs: Iterable[JobUsage], *, catalogue: Catalogue) -> Iterator[NodeUse]:
    """Yields what jobs used of nodes.

    Args:
        jobs: the usages of jobs.
        catalogue: machines.

    Raises:
        ConfigError: If a machine type is not in the catalogue.
    """
    for job in jobs:
        for usage in job.usages:
            if usage.machine:
                yield NodeUse(
                    job=job.uid,
                    machine=usage.machine,
                    vcpus=catalogue.machine_type(usage.machine_type).vcpus,
                    start_us=microseconds(usage.start_time_s),
                    end_us=microseconds(usage.end_time_s),
                )


def job_node_costs(
    uid: str, *, nodes: Sequence[NodeRecord], jobs: Sequence[JobUsage], catalogue: Catalogue, now_s: float
) -> CostRow:
    """Returns the cost of nodes that is charged to one job. Only `nodes` of the row is set.

    Args:
        uid: the job.
        nodes: the nodes that were requested for the job, and those that it used.
        jobs: the usages of all jobs that used one of those nodes.
        catalogue: machines.
        now_s: the end of nodes that are not down, in seconds since 1970 UTC.

    Raises:
        ConfigError: If a machine type is not in the catalogue.
    """
    total = _Sum()
    for piece in split_nodes(nodes, uses=node_uses(jobs, catalogue=catalogue), now_s=now_s):
        if piece.job == uid:
            total.add_node(piece)
    return total.row(uid)


def report_costs(
    jobs: Sequence[JobUsage],
    *,
    by: str,
    catalogue: Catalogue,
    nodes: Sequence[NodeRecord] = (),
    stored: Iterable[StoredSpan] = (),
    storage_price: StoragePrice | None = None,
    project: str | None = None,
    since_s: float = 0.0,
    until_s: float = FOREVER_S,
) -> CostReport:
    """Sums the costs of jobs.

    Args:
        jobs: the usages of all jobs that used one of the nodes, including jobs of other projects.
        by: what a row is: ``job``, ``day``, ``project``, ``node-type``, ``model``, ``version`` or ``label:KEY``.
        catalogue: machines and prices.
        nodes: nodes of the ledger.
        stored: what jobs stored in the bucket.
        storage_price: the price of storage; None if it is unpriced.
        project: the project whose jobs are reported; None for all projects, and for costs that belong to no job.
        since_s: the start of the report, in seconds since 1970 UTC.
        until_s: its end, also for nodes that are not down.

    Raises:
        InvalidInputError: If `by` is none of those.
        ConfigError: If a machine type or a region is not in the catalogue.
    """
    names = _Names(by, nodes=nodes, has_projects=project is None)
    rates = _Rates(catalogue)
    sums: defaultdict[str, _Sum] = defaultdict(partial(_Sum, storage_price=storage_price))
    total = _Sum(storage_price=storage_price)
    for job in jobs:
        if project is not None and job.project != project:
            continue
        unused_share = job.unused_share
        for whole in job.usages:
            is_owed = not job.simulated and not names.has_node(whole)
            for usage in cut_usage(whole, since_s=since_s, until_s=until_s, by_day=by == BY_DAY):
                kind = (rates.of(usage), is_owed, unused_share)
                length_us = usage.length_us
                sums[names.of_usage(job, usage)].add(length_us, kind=kind)
                total.add(length_us, kind=kind)
    by_uid = {job.uid: job for job in jobs}
    since_us, until_us = microseconds(since_s), microseconds(until_s)
    uses = node_uses(jobs, catalogue=catalogue) if nodes else ()
    for whole in split_nodes(nodes, uses=uses, now_s=until_s):
        job = None if whole.job is None else by_uid.get(whole.job)
        piece = whole.clip(since_us=since_us, until_us=until_us)
        if piece is None or (project is not None and (job is None or job.project != project)):
            continue
        for part in cut_slice_by_day(piece) if by == BY_DAY else (piece,):
            sums[names.of_slice(job, part)].add_node(part)
            total.add_node(part)
    for span in stored:
        if project is None or span.project == project:
            for part in span.cut(since_s=since_s, until_s=until_s, by_day=by == BY_DAY):
                for into in (sums[names.of_span(part)], total):
                    into.gib_months += part.gib_months
    return CostReport(
        rows=tuple(sums[name].row(name) for name in sorted(sums)),
        total=total.row("total"),
        storage_source="" if storage_price is None else storage_price.source,
    )


@final
class _Names:
    """Finds the name of the row that a cost belongs to."""

    def __init__(self, by: str, *, nodes: Iterable[NodeRecord], has_projects: bool) -> None:
        is_label = by.startswith(BY_LABEL) and len(by) > len(BY_LABEL)
        if by not in (BY_JOB, BY_DAY, BY_PROJECT, BY_NODE_TYPE, BY_MODEL, BY_VERSION) and not is_label:
            allowed = "job, day, project, node-type, model, version or label:KEY"
            raise InvalidInputError("costs by what", received=by, allowed=allowed)
        self._by = by
        self._has_projects = has_projects
        self._types = {node.name: node.node_type for node in nodes}

    def has_node(self, usage: ReplicaUsage) -> bool:
        return usage.machine in self._types

    def of_usage(self, job: JobUsage, usage: ReplicaUsage) -> str:
        if self._by == BY_DAY:
            return day_name(usage.start_time_s)
        if self._by == BY_NODE_TYPE:
            machine = describe_machine(usage.machine_type, accelerator=usage.accelerator)
            return self._types.get(usage.machine, machine)
        return self._of_job(job)

    def of_slice(self, job: JobUsage | None, piece: NodeSlice) -> str:
        if self._by == BY_DAY:
            return day_name(piece.start_us / 10**6)
        if self._by == BY_NODE_TYPE:
            return piece.node.node_type
        return NO_LABEL if job is None else self._of_job(job)

    def of_span(self, span: StoredSpan) -> str:
        if self._by == BY_DAY:
            return day_name(span.start_s)
        return BUCKET if self._by == BY_NODE_TYPE else self._of_job(span)

    def _of_job(self, job: JobUsage | StoredSpan) -> str:
        if self._by == BY_JOB:
            return job.job
        if self._by in (BY_MODEL, BY_VERSION):
            if job.served is None:
                return NO_LABEL
            name = job.served.model if self._by == BY_MODEL else job.served.version_name
            return f"{job.project}/{name}" if self._has_projects else name
        return job.project if self._by == BY_PROJECT else job.labels.get(self._by.removeprefix(BY_LABEL), NO_LABEL)


_ZERO: Final = round_half_up(Fraction(0), decimals=COST_DECIMALS)


def _rounded(amount: Fraction) -> Decimal:
    return round_half_up(amount, decimals=COST_DECIMALS) if amount else _ZERO


_NO_NODES: Final[Mapping[NodeShare, NodeAmount]] = dict.fromkeys(NodeShare, _node_amount(Fraction(0), usd=Fraction(0)))
