"""Costs of jobs and their nodes, computed from the usages of jobs and the ledger in the database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import final

from lockstep.jobs.billing.costs import CostReport, CostRow, JobUsage, job_node_costs, report_costs
from lockstep.jobs.machines.catalogue import Catalogue
from lockstep.jobs.parsing.fields import FOREVER_S
from lockstep.jobs.provisioning import NodeRecord
from lockstep.service.billing.final_usages import FinalUsages
from lockstep.service.billing.usages import job_usage, machines_of
from lockstep.service.store import JobRecord, JobStore, NodeStore, RanJob, StoredSizeStore


@final
@dataclass(frozen=True, kw_only=True)
class NodeCosts:
    """The cost of a job's nodes.

    Attributes:
        row: the amounts.
        simulated: whether all of the nodes are simulated, so that nothing is owed.
    """

    row: CostRow
    simulated: bool


@final
class Accounts:
    """Computes costs from the database. Thread-safe.

    Args:
        jobs: jobs and their attempts.
        nodes: the ledger.
        sizes: what jobs store in the bucket.
        catalogue: machines and prices.
        bucket: the URL of the service's bucket.
        final: keeps what finished jobs used, for one database and one catalogue.
    """

    def __init__(
        self,
        *,
        jobs: JobStore,
        nodes: NodeStore,
        sizes: StoredSizeStore,
        catalogue: Catalogue,
        bucket: str,
        final: FinalUsages | None = None,
    ) -> None:
        self._jobs = jobs
        self._nodes = nodes
        self._sizes = sizes
        self._catalogue = catalogue
        self._bucket = bucket
        self._final = FinalUsages() if final is None else final

    def report(self, *, project: str | None, by: str, since_s: float, until_s: float, now_s: float) -> CostReport:
        """Sums the costs of an interval.

        Args:
            project: the project whose jobs are reported; None for all, including nodes that belong to no job.
            by: what a row is; see `report_costs`.
            since_s: the start of the interval, in seconds since 1970 UTC.
            until_s: its end. Running jobs and nodes count until now at the most.
            now_s: the present time.

        Raises:
            InvalidInputError: If `by` is not a kind of row.
            ConfigError: If this version cannot read one of the jobs.
        """
        until_s = min(until_s, now_s)
        nodes = self._nodes.between(since_s=since_s, until_s=until_s)
        if nodes:  # their cost is divided among all jobs that used them, whatever their project
            jobs = self._usages_on(nodes, since_s=min(since_s, _first_s(nodes)), until_s=until_s, now_s=now_s)
        else:
            jobs = self._usages(project, since_s=since_s, until_s=until_s, now_s=now_s)
        return report_costs(
            jobs,
            by=by,
            catalogue=self._catalogue,
            nodes=nodes,
            stored=self._sizes.between(project=project, since_s=since_s, until_s=until_s),
            storage_price=self._catalogue.storage_price(self._bucket),
            project=project,
            since_s=since_s,
            until_s=until_s,
        )

    def nodes_of(self, job: JobRecord, *, now_s: float) -> NodeCosts | None:
        """Returns the cost of a job's nodes; None if it had no node of the ledger.

        Args:
            job: the job.
            now_s: the end of nodes that are not down, in seconds since 1970 UTC.

        Raises:
            ConfigError: If this version cannot read one of the jobs on those nodes.
        """
        machines = {*machines_of(job), *(move.machine for move in job.moves)}
        machines.update(name for ended in self._jobs.attempts(job.uid) for name in ended.all_machines)
        nodes = self._nodes.of_job(job.uid, machines=machines)
        if not nodes:
            return None
        jobs = self._usages_on(nodes, since_s=_first_s(nodes), until_s=now_s, now_s=now_s)
        row = job_node_costs(job.uid, nodes=nodes, jobs=jobs, catalogue=self._catalogue, now_s=now_s)
        return NodeCosts(row=row, simulated=all(node.simulated for node in nodes))

    def _usages(self, project: str | None, *, since_s: float, until_s: float, now_s: float) -> list[JobUsage]:
        """Returns the usages of jobs in attempts that end in an interval or after it. Finished jobs are read once."""

        def make(ran: RanJob) -> JobUsage:
            attempts = [attempt for attempt in ran.attempts if attempt.end_time_s >= since_s]
            used = job_usage(ran.job, attempts=attempts, catalogue=self._catalogue, now_s=now_s)
            if ran.is_final and len(attempts) == len(ran.attempts):
                first_s = min((attempt.end_time_s for attempt in attempts), default=FOREVER_S)
                self._final.add(used, version=ran.job.version, first_end_s=first_s)
            return used

        return self._jobs.ran_between(
            project=project,
            since_s=since_s,
            until_s=until_s,
            make=make,
            known=partial(self._final.get, since_s=since_s),
        )

    def _usages_on(
        self, nodes: Sequence[NodeRecord], *, since_s: float, until_s: float, now_s: float
    ) -> list[JobUsage]:
        """Returns the usages of all jobs in an interval, and those of jobs that nodes were requested for."""
        jobs = self._usages(None, since_s=since_s, until_s=until_s, now_s=now_s)
        asked = {node.asked_for for node in nodes if node.asked_for is not None} - {job.uid for job in jobs}
        others = self._jobs.get_by_uids(asked)
        return [*jobs, *(job_usage(job, attempts=(), catalogue=self._catalogue, now_s=now_s) for job in others)]


def _first_s(nodes: Sequence[NodeRecord]) -> float:
    return min(node.asked_time_s for node in nodes)
