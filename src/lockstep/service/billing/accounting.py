"""What jobs and their nodes cost, from the database: the runs and the ledger, brought together for one report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from lockstep.jobs.billing.costs import CostReport, CostRow, Run, job_node_costs, report_costs
from lockstep.jobs.machines.catalogue import Catalogue
from lockstep.jobs.provisioning import NodeRecord
from lockstep.service.billing.usages import machines_of, run_of
from lockstep.service.store import JobRecord, JobStore, NodeStore, StoredSizeStore


@final
@dataclass(frozen=True, kw_only=True)
class NodeCosts:
    """What a job's nodes cost.

    Attributes:
        row: the amounts.
        simulated: whether all of the nodes are, and nothing is owed for them.
    """

    row: CostRow
    simulated: bool


@final
class Accounts:
    """Reads what things cost. Thread-safe.

    Args:
        jobs: jobs and their starts.
        nodes: the ledger.
        sizes: what jobs keep in the bucket.
        catalogue: machines and prices.
        bucket: URL of the service's bucket.
    """

    def __init__(
        self, *, jobs: JobStore, nodes: NodeStore, sizes: StoredSizeStore, catalogue: Catalogue, bucket: str
    ) -> None:
        self._jobs = jobs
        self._nodes = nodes
        self._sizes = sizes
        self._catalogue = catalogue
        self._bucket = bucket

    def report(self, *, project: str | None, by: str, since_s: float, until_s: float, now_s: float) -> CostReport:
        """Adds up what a while cost.

        Args:
            project: whose jobs; None for everything, nodes that are no job's too.
            by: what each row is; see `report_costs`.
            since_s: its beginning, seconds since 1970 UTC.
            until_s: its end; what is not over counts until now at the most.
            now_s: the time now.

        Raises:
            InvalidInputError: `by` is no such thing.
            ConfigError: this version cannot read one of the jobs.
        """
        until_s = min(until_s, now_s)
        nodes = self._nodes.between(since_s=since_s, until_s=until_s)
        if nodes:  # whoever had one of them shares in it, and has its idle time before anybody else had it
            runs = self._runs_beside(nodes, since_s=min(since_s, _first_s(nodes)), until_s=until_s, now_s=now_s)
        else:
            runs = self._runs(project, since_s=since_s, until_s=until_s, now_s=now_s)
        return report_costs(
            runs,
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
        """Returns what a job's nodes cost; None where it had none that come and go.

        Args:
            job: the job.
            now_s: until when nodes count that are not down, seconds since 1970 UTC.

        Raises:
            ConfigError: this version cannot read one of the jobs on those nodes.
        """
        machines = {*machines_of(job), *(move.machine for move in job.moves)}
        machines.update(name for ended in self._jobs.attempts(job.uid) for name in ended.all_machines)
        nodes = self._nodes.of_job(job.uid, machines=machines)
        if not nodes:
            return None
        runs = self._runs_beside(nodes, since_s=_first_s(nodes), until_s=now_s, now_s=now_s)
        row = job_node_costs(job.uid, nodes=nodes, runs=runs, catalogue=self._catalogue, now_s=now_s)
        return NodeCosts(row=row, simulated=all(node.simulated for node in nodes))

    def _runs(self, project: str | None, *, since_s: float, until_s: float, now_s: float) -> list[Run]:
        jobs = self._jobs.ran_between(project=project, since_s=since_s, until_s=until_s)
        return self._as_runs(jobs, attempts=self._jobs.attempts_of(project=project, since_s=since_s), now_s=now_s)

    def _runs_beside(self, nodes: Sequence[NodeRecord], *, since_s: float, until_s: float, now_s: float) -> list[Run]:
        """Returns what all jobs ran in a while, and with them those that nodes were asked for and that never ran."""
        runs = self._runs(None, since_s=since_s, until_s=until_s, now_s=now_s)
        others = {node.asked_for for node in nodes if node.asked_for is not None} - {run.uid for run in runs}
        return [*runs, *self._as_runs(self._jobs.named(others), attempts={}, now_s=now_s)]

    def _as_runs(self, jobs: Sequence[JobRecord], *, attempts: Mapping[str, Any], now_s: float) -> list[Run]:
        return [run_of(job, attempts=attempts.get(job.uid, ()), catalogue=self._catalogue, now_s=now_s) for job in jobs]


def _first_s(nodes: Sequence[NodeRecord]) -> float:
    return min(node.asked_time_s for node in nodes)
