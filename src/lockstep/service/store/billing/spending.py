"""Totals of what projects spent by day, what is not part of them yet, and the budget alerts that were raised.

A running attempt, or a node that is up, costs more with every second. It becomes part of the totals once, when its cost
is final, in the transaction that marks it as summed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final, final

from sqlalchemy import Connection, Engine, and_, bindparam, delete, insert, select, tuple_, update
from sqlalchemy.exc import IntegrityError

from lockstep.jobs.billing.budgets import Alert
from lockstep.jobs.billing.node_costs import NodeUse
from lockstep.jobs.billing.spending import Spent
from lockstep.jobs.provisioning import NodeRecord
from lockstep.service.store.control.job_reader import placed
from lockstep.service.store.control.job_rows import attempt_record, read_jobs
from lockstep.service.store.control.nodes import node_record
from lockstep.service.store.control.records import AttemptRecord, JobRecord
from lockstep.service.store.database import Guard, reading, unguarded, writing
from lockstep.service.store.tables import BUDGET_ALERTS, JOB_ATTEMPTS, JOBS, NODE_USES, NODES, SPENT_DAYS

_USE: Final = ("job", "machine", "vcpus", "start_us", "end_us")


@final
@dataclass(frozen=True, kw_only=True)
class EndedAttempt:
    """An attempt of a job that has ended.

    Attributes:
        job: the job.
        attempt: the attempt.
    """

    job: JobRecord
    attempt: AttemptRecord


@final
@dataclass(frozen=True, kw_only=True)
class UnsummedNode:
    """A node of which some time is not part of the totals.

    Attributes:
        node: the node.
        start_us: the start of that time, in microseconds since 1970 UTC; None if it is all of the node's time.
        last_job: uid of the job that used the node last before `start_us`; None if no job did.
        uses: what ended attempts used of the node since then.
    """

    node: NodeRecord
    start_us: int | None = None
    last_job: str | None = None
    uses: tuple[NodeUse, ...] = ()

    @property
    def rest(self) -> NodeRecord:
        """The node as if it had come up at `start_us`."""
        if self.start_us is None:
            return self.node
        return replace(self.node, up_time_s=self.start_us / 10**6, asked_for=self.last_job)


@final
@dataclass(frozen=True, kw_only=True)
class SummedNode:
    """How much of a node's time is part of the totals.

    Attributes:
        name: the node.
        end_us: the end of that time, in microseconds since 1970 UTC; None if it is all of the node's time.
        last_job: uid of the job that used the node last before `end_us`; None if no job did.
    """

    name: str
    end_us: int | None = None
    last_job: str | None = None


@final
@dataclass(frozen=True, kw_only=True)
class SpendingSnapshot:
    """Everything that spending is computed from, at one moment.

    Attributes:
        totals: the totals by project and day, such as ``2026-11-22``.
        placed: the jobs that `JobStore.placed_jobs` returns.
        attempts: ended attempts that are not part of the totals, the earliest end first.
        nodes: nodes of which some time is not part of the totals.
        projects: the projects of jobs by uid, for the jobs that nodes name.
    """

    totals: Mapping[tuple[str, str], Spent]
    placed: Sequence[JobRecord]
    attempts: Sequence[EndedAttempt]
    nodes: Sequence[UnsummedNode]
    projects: Mapping[str, str]


@final
class SpendingStore:
    """Keeps totals of spending, and alerts. Thread-safe; each method is one transaction.

    Args:
        engine: the opened database.
        guard: called in each transaction that writes, before it does; may forbid it by raising.
    """

    def __init__(self, engine: Engine, *, guard: Guard = unguarded) -> None:
        self._engine = engine
        self._guard = guard

    def snapshot(self, *, since_day: str, limit: int) -> SpendingSnapshot:
        """Returns what spending is computed from.

        Args:
            since_day: the first day whose totals are wanted, such as ``2026-11-01``.
            limit: the maximum number of ended attempts.
        """
        with reading(self._engine) as connection:
            jobs = read_jobs(connection, placed())
            attempts = _unsummed_attempts(connection, limit=limit)
            nodes = _unsummed_nodes(connection)
            projects = {job.uid: job.project for job in (*jobs, *(ended.job for ended in attempts))}
            named = {uid for node in nodes for uid in (node.node.asked_for, node.last_job) if uid is not None}
            named |= {use.job for node in nodes for use in node.uses}
            if missing := named - projects.keys():
                query = select(JOBS.c.uid, JOBS.c.project).where(JOBS.c.uid.in_(missing))
                projects |= {row.uid: row.project for row in connection.execute(query)}
            totals = _totals(connection, SPENT_DAYS.c.day >= since_day)
        return SpendingSnapshot(totals=totals, placed=jobs, attempts=attempts, nodes=nodes, projects=projects)

    def add(
        self,
        spent: Mapping[tuple[str, str], Spent],
        *,
        attempts: Collection[EndedAttempt] = (),
        uses: Collection[NodeUse] = (),
        nodes: Collection[SummedNode] = (),
    ) -> None:
        """Adds to the totals, and marks what was added as summed.

        Args:
            spent: what to add, by project and day.
            attempts: the attempts that are summed with it.
            uses: what those attempts used of nodes that are not summed yet.
            nodes: how much of nodes is summed with it.
        """
        if not (spent or attempts or nodes):
            return
        with writing(self._engine, guard=self._guard) as connection:
            _add_totals(connection, spent)
            if attempts:
                keys = [(ended.job.uid, ended.attempt.attempt) for ended in attempts]
                summed = tuple_(JOB_ATTEMPTS.c.job_uid, JOB_ATTEMPTS.c.attempt).in_(keys)
                connection.execute(update(JOB_ATTEMPTS).where(summed).values(is_summed=True))
            if uses:
                connection.execute(insert(NODE_USES), [{name: getattr(use, name) for name in _USE} for use in uses])
            if nodes:
                _mark_nodes(connection, nodes)

    def raise_alert(self, alert: Alert, *, text: str, time_s: float) -> bool:
        """Records an alert; returns whether it is a new one.

        Args:
            alert: the alert.
            text: its message.
            time_s: the time of the alert, in seconds since 1970 UTC.
        """
        values = {
            "project": alert.project,
            "period": alert.period,
            "share": alert.share,
            "limit_usd": alert.limit_usd,
            "text": text,
            "time_s": time_s,
        }
        try:
            with writing(self._engine, guard=self._guard) as connection:
                connection.execute(insert(BUDGET_ALERTS).values(values))
        except IntegrityError:
            return False
        return True


def _unsummed_attempts(connection: Connection, *, limit: int) -> list[EndedAttempt]:
    order = (JOB_ATTEMPTS.c.end_time_s, JOB_ATTEMPTS.c.job_uid, JOB_ATTEMPTS.c.attempt)
    query = select(JOB_ATTEMPTS).where(JOB_ATTEMPTS.c.is_summed.is_(False)).order_by(*order).limit(limit)
    rows = connection.execute(query).mappings().all()
    uids = {row["job_uid"] for row in rows}
    jobs = {job.uid: job for job in read_jobs(connection, JOBS.c.uid.in_(uids))} if rows else {}
    return [EndedAttempt(job=jobs[row["job_uid"]], attempt=attempt_record(row)) for row in rows]


def _unsummed_nodes(connection: Connection) -> list[UnsummedNode]:
    query = select(NODES).where(NODES.c.is_summed.is_(False)).order_by(NODES.c.asked_time_s, NODES.c.name)
    rows = connection.execute(query).mappings().all()
    uses: dict[str, list[NodeUse]] = {}
    if rows:
        for use in connection.execute(select(*(NODE_USES.c[name] for name in _USE))).mappings():
            uses.setdefault(use["machine"], []).append(NodeUse(**use))
    return [
        UnsummedNode(
            node=node_record(row),
            start_us=row["summed_until_us"],
            last_job=row["summed_last_job"],
            uses=tuple(uses.get(row["name"], ())),
        )
        for row in rows
    ]


def _totals(connection: Connection, condition: Any) -> dict[tuple[str, str], Spent]:
    rows = connection.execute(select(SPENT_DAYS).where(condition)).mappings()
    return {
        (row["project"], row["day"]): Spent(
            owed_usd=Fraction(row["owed_usd"]),
            simulated_usd=Fraction(row["simulated_usd"]),
            unpriced=tuple(row["unpriced"]),
        )
        for row in rows
    }


def _add_totals(connection: Connection, spent: Mapping[tuple[str, str], Spent]) -> None:
    if not spent:
        return
    key = tuple_(SPENT_DAYS.c.project, SPENT_DAYS.c.day).in_(list(spent))
    found = _totals(connection, key)
    if found:
        connection.execute(delete(SPENT_DAYS).where(key))
    rows: list[dict[str, Any]] = []
    for (project, day), more in spent.items():
        total = found.get((project, day), Spent()) + more
        amounts = {"owed_usd": str(total.owed_usd), "simulated_usd": str(total.simulated_usd)}
        rows.append({"project": project, "day": day, **amounts, "unpriced": list(total.unpriced)})
    connection.execute(insert(SPENT_DAYS), rows)


def _mark_nodes(connection: Connection, nodes: Collection[SummedNode]) -> None:
    connection.execute(
        update(NODES)
        .where(NODES.c.name == bindparam("node"))
        .values(is_summed=bindparam("is_all"), summed_until_us=bindparam("end_us"), summed_last_job=bindparam("job")),
        [
            {"node": node.name, "is_all": node.end_us is None, "end_us": node.end_us, "job": node.last_job}
            for node in nodes
        ],
    )
    for node in nodes:
        of_node = NODE_USES.c.machine == node.name
        is_over = of_node if node.end_us is None else and_(of_node, NODE_USES.c.end_us <= node.end_us)
        connection.execute(delete(NODE_USES).where(is_over))
