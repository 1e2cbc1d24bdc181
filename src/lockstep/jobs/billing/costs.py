"""What jobs cost together: by job, by day, by a label; from the same recorded intervals as each job's own bill.

Sums are exact and rounded once, in each row and in the total by itself, to `COST_DECIMALS` (half up). A single job's
bill rounds its ML units to two decimals first, as the contract reports them: a row of one job may differ by that.

Two measures stand side by side. What replicas ran has a list price. The nodes that they had, where nodes come and go,
cost from up to down, which is what is owed for them, whether somebody used them or not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Final, final

from lockstep.errors import InvalidInputError
from lockstep.jobs.billing.bills import COST_DECIMALS, LINE_DECIMALS, ReplicaUsage, round_half_up
from lockstep.jobs.billing.days import cut_slice_by_day, cut_usage, day_name
from lockstep.jobs.billing.node_costs import NodeShare, NodeSlice, NodeUse, microseconds, split_nodes
from lockstep.jobs.billing.storage_costs import StoredSpan
from lockstep.jobs.input.gangs import describe_machine
from lockstep.jobs.machines.catalogue import Catalogue, StoragePrice
from lockstep.jobs.parsing.fields import FOREVER_S
from lockstep.jobs.provisioning import NodeRecord

BY_JOB: Final = "job"
BY_DAY: Final = "day"
BY_PROJECT: Final = "project"
BY_NODE_TYPE: Final = "node-type"
BY_LABEL: Final = "label:"
SECOND_DECIMALS: Final = 3
NO_LABEL: Final = "(none)"
"""The row of what has no such label, or is no job's."""

BUCKET: Final = "(bucket)"
"""The row of what lies in the bucket, among types of nodes."""


@final
@dataclass(frozen=True, kw_only=True)
class Run:
    """What the replicas of one job ran.

    Attributes:
        uid: the service's own identifier of the job.
        project: its project.
        job: its name.
        labels: its labels.
        simulated: whether nothing is owed for its machines.
        usages: intervals in RUNNING; those of a job that runs end now.
    """

    uid: str
    project: str
    job: str
    labels: Mapping[str, str]
    simulated: bool
    usages: tuple[ReplicaUsage, ...]


@final
@dataclass(frozen=True, kw_only=True)
class NodeAmount:
    """Some of what nodes cost.

    Attributes:
        length_s: how long, in seconds of whole nodes, to three decimals (half up).
        cost_usd: what it cost in US dollars, where it is priced.
    """

    length_s: Decimal
    cost_usd: Decimal


@final
@dataclass(frozen=True, kw_only=True)
class CostRow:
    """What belongs together.

    Attributes:
        name: the job, the day (UTC, as 2026-11-22), the project, the type of node, or the label's value.
        machine_hours: hours that its machines ran, all replicas added up.
        ml_units: ML units of what is priced.
        cost_usd: what they cost at list prices, in US dollars.
        owed_usd: what is owed: for nodes in the ledger what those cost, for other machines their list price, for
            simulated ones nothing.
        nodes: what the nodes of the ledger cost, by what their time was for.
        stored_gib_months: what its jobs kept in the bucket, in GiB times months of 730 hours, to six decimals.
        stored_usd: what that cost, in US dollars; None where it is unpriced. It is in no other sum.
        unpriced: machines in words that have no price: what they cost is in no sum.
        sources: where the prices of the nodes come from.
    """

    name: str
    machine_hours: Decimal
    ml_units: Decimal
    cost_usd: Decimal
    owed_usd: Decimal
    nodes: Mapping[NodeShare, NodeAmount]
    stored_gib_months: Decimal
    stored_usd: Decimal | None
    unpriced: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()


@final
@dataclass(frozen=True, kw_only=True)
class CostReport:
    """Costs of a while.

    Attributes:
        rows: by name.
        total: all of them.
        storage_source: where the price of what is kept in the bucket comes from; "" where there is none.
    """

    rows: tuple[CostRow, ...]
    total: CostRow
    storage_source: str = ""


@final
@dataclass(kw_only=True)
class _Sum:
    """Adds up without rounding."""

    hours: Fraction = Fraction(0)
    units: Fraction = Fraction(0)
    usd: Fraction = Fraction(0)
    owed: Fraction = Fraction(0)
    gib_months: Fraction = Fraction(0)
    storage_price: StoragePrice | None = None
    node_hours: dict[NodeShare, Fraction] = field(default_factory=lambda: dict.fromkeys(NodeShare, Fraction(0)))
    node_usd: dict[NodeShare, Fraction] = field(default_factory=lambda: dict.fromkeys(NodeShare, Fraction(0)))
    unpriced: dict[str, None] = field(default_factory=dict[str, None])
    sources: dict[str, None] = field(default_factory=dict[str, None])

    def add(self, usage: ReplicaUsage, *, is_owed: bool, catalogue: Catalogue) -> None:
        self.hours += usage.hours
        per_hour = catalogue.units_per_hour(usage.machine_type, accelerator=usage.accelerator, region=usage.region)
        if per_hour is None:
            self.unpriced[describe_machine(usage.machine_type, accelerator=usage.accelerator)] = None
            return
        units = per_hour * usage.hours
        usd = units * catalogue.ml_unit_usd(usage.region)
        self.units += units
        self.usd += usd
        self.owed += usd if is_owed else 0

    def add_node(self, piece: NodeSlice) -> None:
        self.node_hours[piece.share] += piece.hours
        usd = piece.cost_usd
        if usd is None:
            self.unpriced[f"node {piece.node.machine or piece.node.node_type}"] = None
            return
        self.sources[piece.node.price_source] = None
        self.node_usd[piece.share] += usd
        self.owed += 0 if piece.node.simulated else usd

    def row(self, name: str) -> CostRow:
        return CostRow(
            name=name,
            machine_hours=_rounded(self.hours),
            ml_units=_rounded(self.units),
            cost_usd=_rounded(self.usd),
            owed_usd=_rounded(self.owed),
            nodes={
                share: NodeAmount(
                    length_s=round_half_up(self.node_hours[share] * 3600, decimals=SECOND_DECIMALS),
                    cost_usd=_rounded(self.node_usd[share]),
                )
                for share in NodeShare
            },
            stored_gib_months=round_half_up(self.gib_months, decimals=LINE_DECIMALS),
            stored_usd=None
            if self.storage_price is None
            else _rounded(self.gib_months * self.storage_price.usd_per_gib_month),
            unpriced=tuple(self.unpriced),
            sources=tuple(self.sources),
        )


def uses_of(runs: Iterable[Run], *, catalogue: Catalogue) -> Iterator[NodeUse]:
    """Yields what jobs had of nodes.

    Args:
        runs: what they ran.
        catalogue: machines.

    Raises:
        ConfigError: a machine type is not in the catalogue.
    """
    for run in runs:
        for usage in run.usages:
            if usage.machine:
                yield NodeUse(
                    job=run.uid,
                    machine=usage.machine,
                    vcpus=catalogue.machine_type(usage.machine_type).vcpus,
                    start_us=microseconds(usage.start_time_s),
                    end_us=microseconds(usage.end_time_s),
                )


def job_node_costs(
    uid: str, *, nodes: Sequence[NodeRecord], runs: Sequence[Run], catalogue: Catalogue, now_s: float
) -> CostRow:
    """Returns what the nodes of one job cost it; its `nodes` are to be read, nothing else is in it.

    Args:
        uid: the job.
        nodes: the nodes that were asked for it, and those that it had.
        runs: what all jobs ran that had any of them.
        catalogue: machines.
        now_s: until when nodes count that are not down, seconds since 1970 UTC.

    Raises:
        ConfigError: a machine type is not in the catalogue.
    """
    total = _Sum()
    for piece in split_nodes(nodes, uses=uses_of(runs, catalogue=catalogue), now_s=now_s):
        if piece.job == uid:
            total.add_node(piece)
    return total.row(uid)


def report_costs(
    runs: Sequence[Run],
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
    """Adds up what jobs cost.

    Args:
        runs: what they ran: all jobs that had any of the nodes, those of other projects too.
        by: ``job``, ``day``, ``project``, ``node-type`` or ``label:KEY``.
        catalogue: machines and prices.
        nodes: the nodes of the ledger.
        stored: what jobs kept in the bucket.
        storage_price: what that costs; None where it is unpriced.
        project: what is no job's of it is left out; None for all.
        since_s: what ran before is left out, seconds since 1970 UTC.
        until_s: and what ran from then on; nodes that are not down count until then.

    Raises:
        InvalidInputError: `by` is something else.
        ConfigError: a machine type or a region is not in the catalogue.
    """
    names = _Names(by, nodes=nodes)
    sums: defaultdict[str, _Sum] = defaultdict(partial(_Sum, storage_price=storage_price))
    total = _Sum(storage_price=storage_price)
    for run in runs:
        if project is not None and run.project != project:
            continue
        for whole in run.usages:
            is_owed = not run.simulated and not names.has_node(whole)
            for usage in cut_usage(whole, since_s=since_s, until_s=until_s, by_day=by == BY_DAY):
                for into in (sums[names.of_usage(run, usage)], total):
                    into.add(usage, is_owed=is_owed, catalogue=catalogue)
    by_uid = {run.uid: run for run in runs}
    since_us, until_us = microseconds(since_s), microseconds(until_s)
    for whole in split_nodes(nodes, uses=uses_of(runs, catalogue=catalogue), now_s=until_s):
        run = None if whole.job is None else by_uid.get(whole.job)
        piece = whole.clip(since_us=since_us, until_us=until_us)
        if piece is None or (project is not None and (run is None or run.project != project)):
            continue
        for part in cut_slice_by_day(piece) if by == BY_DAY else (piece,):
            sums[names.of_slice(run, part)].add_node(part)
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
    """Says which row something belongs to."""

    def __init__(self, by: str, *, nodes: Iterable[NodeRecord]) -> None:
        is_label = by.startswith(BY_LABEL) and len(by) > len(BY_LABEL)
        if by not in (BY_JOB, BY_DAY, BY_PROJECT, BY_NODE_TYPE) and not is_label:
            raise InvalidInputError("costs by what", received=by, allowed="job, day, project, node-type or label:KEY")
        self._by = by
        self._types = {node.name: node.node_type for node in nodes}

    def has_node(self, usage: ReplicaUsage) -> bool:
        return usage.machine in self._types

    def of_usage(self, run: Run, usage: ReplicaUsage) -> str:
        if self._by == BY_DAY:
            return day_name(usage.start_time_s)
        if self._by == BY_NODE_TYPE:
            machine = describe_machine(usage.machine_type, accelerator=usage.accelerator)
            return self._types.get(usage.machine, machine)
        return self._of_job(run)

    def of_slice(self, run: Run | None, piece: NodeSlice) -> str:
        if self._by == BY_DAY:
            return day_name(piece.start_us / 10**6)
        if self._by == BY_NODE_TYPE:
            return piece.node.node_type
        return NO_LABEL if run is None else self._of_job(run)

    def of_span(self, span: StoredSpan) -> str:
        if self._by == BY_DAY:
            return day_name(span.start_s)
        return BUCKET if self._by == BY_NODE_TYPE else self._of_job(span)

    def _of_job(self, run: Run | StoredSpan) -> str:
        if self._by == BY_JOB:
            return run.job
        return run.project if self._by == BY_PROJECT else run.labels.get(self._by.removeprefix(BY_LABEL), NO_LABEL)


def _rounded(amount: Fraction) -> Decimal:
    return round_half_up(amount, decimals=COST_DECIMALS)
