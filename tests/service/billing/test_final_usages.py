"""What finished jobs used is kept: reports have the same figures as if everything were read, and read little."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from lockstep.jobs.billing.costs import CostReport, JobUsage, report_costs
from lockstep.jobs.machines.catalogue import load_catalogue
from lockstep.jobs.provisioning import NodeRecord
from lockstep.jobs.running.orders import ReplicaPhase, ReplicaStatus
from lockstep.jobs.running.states import JobEvent, JobState
from lockstep.service.billing import accounting
from lockstep.service.billing.accounting import Accounts
from lockstep.service.billing.final_usages import FinalUsages
from lockstep.service.billing.usages import job_usage
from lockstep.service.store import (
    AttemptRecord,
    JobKind,
    JobRecord,
    JobStore,
    NodeStore,
    ReplicaRecord,
    StoredSizeStore,
    open_database,
)

HOUR_S = 3600.0
CATALOGUE = load_catalogue()
ONE = {"scaleTier": "CUSTOM", "masterType": "n1-standard-4", "pythonModule": "program"}
THREE = {**ONE, "workerType": "n1-highmem-4", "workerCount": "2", "region": "europe-west4"}
DIVISIONS = ("job", "day", "project", "node-type", "version", "label:team")


class History:
    """A database with jobs of all kinds, to which random things happen."""

    def __init__(self, engine: Engine, *, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.now_s = 1_700_000_000.0
        self.jobs = JobStore(engine, clock=lambda: self.now_s)
        self.nodes = NodeStore(engine)
        self.sizes = StoredSizeStore(engine)
        self.uids: list[str] = []

    def accounts(self, final: FinalUsages) -> Accounts:
        stores = {"jobs": self.jobs, "nodes": self.nodes, "sizes": self.sizes}
        return Accounts(**stores, catalogue=CATALOGUE, bucket="/b", final=final)

    def happen(self) -> None:
        """Has something happen to a job some time later."""
        self.now_s += self.random.uniform(1.0, 6 * HOUR_S)
        job = self.jobs.get_by_uid(self.random.choice(self.uids)) if self.uids else None
        if job is None or self.random.random() < 0.3:
            self.start(self.create())
        elif self.random.random() < 0.2:
            self.jobs.set_labels(job.uid, labels={"team": self.random.choice("abc")}, version=None)
        elif job.state is JobState.QUEUED:
            self.start(job.uid)
        elif job.state is JobState.RUNNING:
            self.end(job, self.random.choice([JobEvent.SUCCEEDED, JobEvent.FAILED, JobEvent.RESTARTED]))
        elif not job.gang_released:  # what its server did last is known only now
            self.report_busy(job.uid)
            self.jobs.update(job.uid, gang_released=True)

    def create(self) -> str:
        number = len(self.uids)
        is_server = self.random.random() < 0.5
        job = self.jobs.create(
            project=self.random.choice("pq"),
            job_id=f"m/v{number % 3}/{number}" if is_server else f"job_{number}",
            kind=JobKind.SERVER if is_server else JobKind.TRAINING,
            version_uid="v" if is_server else None,
            training_input=ONE if is_server else self.random.choice([ONE, THREE]),
            prediction_input=self.random.choice([None, {"modelName": "projects/p/models/n"}]),
            labels=self.random.choice([{}, {"team": "a"}]),
            simulated=self.random.random() < 0.2,
            outputs={},
        )
        self.uids.append(job.uid)
        return job.uid

    def start(self, uid: str) -> None:
        job = self.jobs.advance(uid, JobEvent.PREPARING, detail="", gang_released=False)
        began_s = job.start_time_s or self.now_s
        self.jobs.advance(uid, JobEvent.STARTED, detail="", start_time_s=began_s, run_start_time_s=self.now_s)
        if job.kind is JobKind.SERVER:
            self.report_busy(uid)

    def report_busy(self, uid: str) -> None:
        busy_s = self.random.uniform(0.0, 10 * HOUR_S)
        status = ReplicaStatus(name="master-replica-0", phase=ReplicaPhase.RUNNING, earlier_busy_s=busy_s)
        self.jobs.update(uid, replicas=[ReplicaRecord(status=status, machine_type="n1-standard-4")])

    def end(self, job: JobRecord, kind: JobEvent, *, machines: tuple[str, ...] = ()) -> None:
        ended = AttemptRecord(
            attempt=job.attempt,
            start_time_s=job.run_start_time_s,
            end_time_s=self.now_s,
            end_reason=None,
            machines=machines,
        )
        changes: dict[str, Any] = {"end_time_s": self.now_s, "gang_released": self.random.random() < 0.5}
        if kind is JobEvent.RESTARTED:
            changes = {"attempt": job.attempt + 1, "run_start_time_s": None, "gang_released": True}
        self.jobs.advance(job.uid, kind, detail="", ended=ended, **changes)

    def plainly(self, *, project: str | None, by: str, since_s: float, until_s: float) -> CostReport:
        """Returns the report from all jobs and attempts, as they are recorded."""
        used: list[JobUsage] = []
        until_s = min(until_s, self.now_s)
        for job in self.jobs.get_by_uids(self.uids):
            has_ended = job.end_time_s is not None and job.end_time_s <= since_s
            if project in (None, job.project) and (job.start_time_s or 1e18) < until_s and not has_ended:
                attempts = [each for each in self.jobs.attempts(job.uid) if each.end_time_s >= since_s]
                used.append(job_usage(job, attempts=attempts, catalogue=CATALOGUE, now_s=self.now_s))
        return report_costs(
            used,
            by=by,
            catalogue=CATALOGUE,
            storage_price=CATALOGUE.storage_price("/b"),
            project=project,
            since_s=since_s,
            until_s=until_s,
        )


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = open_database(f"sqlite:///{tmp_path / 'jobs.db'}")
    yield engine
    engine.dispose()


@pytest.mark.parametrize(("seed", "max_usages"), [(1, 1000), (2, 1000), (3, 8)])
@pytest.mark.heavy
def test_reports_are_those_of_what_is_recorded_whatever_happens(engine: Engine, seed: int, max_usages: int) -> None:
    history, final = History(engine, seed=seed), FinalUsages(max_usages=max_usages)
    accounts, choose = history.accounts(final), history.random
    began_s = history.now_s
    for number in range(160):
        history.happen()
        if number % 2:
            continue
        since_s = choose.choice([0.0, choose.uniform(began_s, history.now_s), history.now_s - 24 * HOUR_S])
        until_s = choose.choice([1e10, choose.uniform(since_s, history.now_s)])
        asked = {"project": choose.choice(["p", None]), "by": choose.choice(DIVISIONS)}
        report = accounts.report(**asked, since_s=since_s, until_s=until_s, now_s=history.now_s)
        assert report == history.plainly(**asked, since_s=since_s, until_s=until_s), (number, asked)
        assert final.num_usages <= max_usages
    assert report_of(accounts, history).total.cost_usd > 0
    assert final.num_usages > 4


def report_of(accounts: Accounts, history: History, *, by: str = "job") -> CostReport:
    return accounts.report(project="p", by=by, since_s=0.0, until_s=1e10, now_s=history.now_s)


def test_a_finished_job_is_read_once_and_again_with_other_labels(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History(engine)
    for _ in range(150):
        history.happen()
    accounts, read = history.accounts(FinalUsages()), list[str]()

    def counting(job: JobRecord, **options: Any) -> JobUsage:
        read.append(job.uid)
        return job_usage(job, **options)

    monkeypatch.setattr(accounting, "job_usage", counting)
    first = report_of(accounts, history)
    jobs = {uid: history.jobs.get_by_uid(uid) for uid in read}
    over = [uid for uid, job in jobs.items() if job.end_time_s is not None and job.gang_released]
    assert len(over) > 5
    assert set(jobs) - set(over), "others may still change"
    read.clear()
    assert report_of(accounts, history) == first
    assert set(read) == set(jobs) - set(over)
    history.jobs.set_labels(over[0], labels={"team": "another"}, version=None)
    read.clear()
    assert "another" in {row.name for row in report_of(accounts, history, by="label:team").rows}
    assert over[0] in read
    assert not set(over[1:]) & set(read)


def test_the_time_of_nodes_is_divided_among_kept_jobs_too(engine: Engine) -> None:
    history = History(engine)
    node = NodeRecord(
        name="n",
        slot="n",
        node_type="cpu",
        asked_for=None,
        asked_time_s=history.now_s,
        up_time_s=history.now_s,
        ready_time_s=history.now_s,
        machine="n1-standard-4",
        usd_per_hour="0.36",
        price_source="test",
    )
    history.nodes.record(asked=[node])
    shared = {"training_input": ONE, "labels": {}, "simulated": False, "outputs": {}}
    for project in ("p", "q"):
        uid = history.jobs.create(project=project, job_id="j", **shared).uid
        history.start(uid)
        history.now_s += HOUR_S
        history.end(history.jobs.get_by_uid(uid), JobEvent.SUCCEEDED, machines=("n",))
        history.jobs.update(uid, gang_released=True)
    final = FinalUsages()
    reports = [report_of(history.accounts(final), history) for _ in range(2)]
    assert [str(report.total.owed_usd) for report in reports] == ["0.3600", "0.3600"]
    assert reports[0] == reports[1]
    assert final.num_usages == 2


def test_reports_of_many_threads_share_what_is_kept(engine: Engine) -> None:
    history, final = History(engine), FinalUsages(max_usages=5)
    for _ in range(100):
        history.happen()
    expected = report_of(history.accounts(FinalUsages()), history)
    with ThreadPoolExecutor(4) as pool:
        reports = list(pool.map(lambda _: report_of(history.accounts(final), history), range(12), timeout=60))
    assert all(report == expected for report in reports)
    assert 0 < final.num_usages <= 5
