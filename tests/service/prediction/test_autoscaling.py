"""The scaling of a version on simulated machines, and the bill that it makes.

The controller, the scheduler, the deployments, the ledger and the bill are the real ones, and so are the processes. The
servers load no model: they report the load that the test tells them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from itertools import accumulate
from pathlib import Path

import pytest
from tests.service.lab import Lab, accounts

from lockstep.errors import UnavailableError
from lockstep.jobs.machines.catalogue import load_catalogue
from lockstep.jobs.running.states import JobState
from lockstep.service.billing.usages import job_bill
from lockstep.service.prediction import servers as servers_module
from lockstep.service.prediction.autoscaler import USE_PRECISION_S
from lockstep.service.prediction.deployments import Deployments, is_ready
from lockstep.service.prediction.routing import Routes
from lockstep.service.prediction.uses import LOOK_INTERVAL_S, WRITE_INTERVAL_S
from lockstep.service.store import (
    DemandStore,
    JobRecord,
    JobStore,
    ModelStore,
    ScalingPolicy,
    VersionRecord,
    VersionState,
    open_database,
)
from lockstep.submission.packing import stage_folder
from lockstep.testing.bench import step_pauses_s

WAIT_S = 60.0
WINDOW_S = 600.0

SERVER = '''
"""Reports the load that a file beside its model's original says: the open requests of each server."""
import pathlib, signal, socket, sys, time
from lockstep.heartbeat import report_progress
from lockstep.topology import Topology

model = next(arg for arg in sys.argv if arg.startswith("--model=")).removeprefix("--model=")
load = pathlib.Path(pathlib.Path(model).read_text())
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
host, _, port = Topology.from_env().synchronous_addresses[0].rpartition(":")
listener = socket.create_server((host, int(port)))
before, open_s, busy_s, requests = time.monotonic(), 0.0, 0.0, 0
while True:
    each = float(load.read_text() or 0)
    now = time.monotonic()
    open_s, busy_s = open_s + each * (now - before), busy_s + (each > 0) * (now - before)
    before, requests = now, requests + (each > 0)
    report_progress(requests=requests, waiting=0, open=each, openSeconds=open_s, busySeconds=busy_s)
    time.sleep(0.1)
'''


class Site:
    """A version on a lab's machines, whose load a test sets."""

    def __init__(self, lab: Lab, path: Path) -> None:
        lab.define(
            idleTimeout="0.5s",
            nodeTypes={"cpu": {"machineType": "n1-standard-4", "maxNodes": 4}},
        )
        self.lab = lab
        self.offset_s = 0.0
        self.load = path / "load"
        database = open_database(f"sqlite:///{lab.bench.home.database}")
        self.models, self.jobs, self.demands = ModelStore(database), JobStore(database), DemandStore(database)
        self.routes = Routes(models=self.models, jobs=self.jobs, vault=lab.bench.vault)
        self.folder = path / "temporary"
        self.deployments = self.start()
        (path / "code").mkdir()
        (path / "code" / "loaded_server.py").write_text(SERVER)
        (path / "model.keras").write_text(str(self.load))
        self.set_load(0)
        self.models.create_model(project="local", name="m", description="", labels={})
        policy = ScalingPolicy(
            min_servers=0,
            max_servers=4,
            cpu_percent=None,
            requests_per_server=2,
            idle_timeout_s=2 * WINDOW_S,
            stabilization_window_s=WINDOW_S,
        )
        self.models.create_version(
            project="local",
            model="m",
            name="v1",
            description="",
            labels={},
            deployment_uri=str(path / "model.keras"),
            machine_type="n1-standard-4",
            package_uris=[stage_folder(path / "code", staging=str(path / "staging"))],
            scaling=policy,
        )

    def start(self) -> Deployments:
        """Returns the deployments of a service that has just started."""
        return Deployments(
            models=self.models,
            jobs=self.jobs,
            demands=self.demands,
            cluster=self.lab.cluster,
            catalogue=load_catalogue(),
            bucket=str(self.lab.bench.home.bucket),
            folder=self.folder,
            wake=self.lab.bench.controller.wake,
            clock=lambda: time.time() + self.offset_s,
        )

    def set_load(self, each: float) -> None:
        partial = self.load.with_suffix(".partial")
        partial.write_text(str(each))
        partial.replace(self.load)

    def version(self) -> VersionRecord:
        return self.models.get_version(project="local", model="m", name="v1")

    def servers(self) -> list[JobRecord]:
        return self.jobs.servers()

    def num_routed(self) -> int:
        try:
            return len(self.routes.find(project="local", model="m", version="v1"))
        except UnavailableError:
            return 0

    def step(self) -> None:
        self.lab.bench.step()
        self.deployments.step()

    def jump(self, seconds: float) -> None:
        """Advances the clock of the deployments, after they have observed the present."""
        self.step()
        self.offset_s += seconds

    def step_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        pauses_s = step_pauses_s()
        while not condition():
            assert time.monotonic() < deadline, "\n".join(map(str, (self.version(), *self.servers())))
            self.step()
            time.sleep(next(pauses_s))

    def step_until_reported(self, each: float) -> None:
        """Steps until two reports of every server say how many requests each has."""
        for _ in range(2):
            before = {server.uid: _reported(server)[0] for server in self.servers()}
            self.step_until(
                lambda before=before: all(
                    _reported(server)[0] > before[server.uid] and _reported(server)[1] == each
                    for server in self.servers()
                )
            )

    def step_until_settled(self, number: int) -> None:
        self.step_until(
            lambda: self.version().num_servers == number == len(self.servers()) == sum(map(is_ready, self.servers()))
        )


def _reported(server: JobRecord) -> tuple[float, float]:
    progress = server.replicas[0].status.progress
    assert progress is not None
    return progress.time_s, progress.metrics["open"]


@pytest.fixture
def site(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(servers_module, "SERVER_MODULE", "loaded_server")
    return Site(lab, tmp_path)


def rounded(amount: Fraction, decimals: int) -> Decimal:
    """Rounds half up, exactly."""
    exact = Decimal(amount.numerator * 10**decimals) / Decimal(amount.denominator)
    return exact.quantize(Decimal(1), rounding=ROUND_HALF_UP).scaleb(-decimals)


@pytest.mark.heavy
def test_from_none_to_four_and_back_and_the_bill_is_that_of_the_recorded_times(site: Site) -> None:
    site.step_until_settled(1)
    site.jump(2 * WINDOW_S)
    site.step_until(lambda: site.version().num_servers == 0 and not site.servers())
    assert site.version().state is VersionState.READY, "a request wakes it"
    site.step_until(lambda: not site.lab.machines.names())
    site.demands.note(site.version().uid, num_waiting=1)
    site.step_until_settled(1)
    site.set_load(4.0)  # 4 requests on 1 server: 2 are needed, which then have 8
    site.step_until_settled(4)
    assert len(site.lab.machines.names()) == 4
    site.set_load(0.9)  # 3.6 requests on 4 servers: 2 are enough, even if a report comes a little late
    site.step_until_reported(0.9)
    site.jump(WINDOW_S)
    site.step_until(lambda: site.version().num_servers == 2)
    assert len(site.servers()) == 4, "those that are not needed answer what they have first"
    site.step_until(lambda: site.num_routed() == 2)
    assert all(server.state is JobState.RUNNING for server in site.servers()), "first they are not chosen any more"
    site.set_load(0)
    site.step_until_settled(2)
    site.step_until_reported(0.0)
    site.jump(2 * WINDOW_S)
    site.step_until(lambda: site.version().num_servers == 0 and not site.servers())
    site.step_until(lambda: all(node.down_time_s is not None for node in site.lab.ledger))
    check_bill(site)


def check_bill(site: Site) -> None:
    """Computes the bill by hand: the recorded microseconds of each server, at $0.19 an hour."""
    now_s = time.time()
    per_us = Fraction(19, 100) / (3600 * 10**6)
    jobs = site.jobs.ran_between(project="local", since_s=0.0, until_s=now_s, make=lambda ran: ran.job)
    assert len(jobs) == 5, "the first server, and four"
    total_usd, runs = Fraction(0), list[tuple[float, int]]()
    for job in jobs:
        attempts = site.jobs.attempts(job.uid)
        [attempt] = attempts
        assert attempt.start_time_s is not None
        assert (job.state, job.end_time_s) == (JobState.CANCELLED, attempt.end_time_s)
        usd = per_us * (round(attempt.end_time_s * 10**6) - round(attempt.start_time_s * 10**6))
        [line] = job_bill(job, attempts=attempts, catalogue=load_catalogue()).lines
        assert line.cost_usd == rounded(usd, 6) > 0
        total_usd += usd
        runs += [(attempt.start_time_s, 1), (attempt.end_time_s, -1)]
    report = accounts(site.lab).report(project="local", by="job", since_s=0.0, until_s=now_s, now_s=now_s)
    assert (report.total.cost_usd, len(report.rows)) == (rounded(total_usd, 4), 5)
    assert report.total.cost_usd > 0
    by_version = accounts(site.lab).report(project="local", by="version", since_s=0.0, until_s=now_s, now_s=now_s)
    assert [replace(row, name="total") for row in by_version.rows] == [report.total]
    assert max(accumulate(change for _, change in sorted(runs))) == 4
    nodes = site.lab.ledger
    assert {node.usd_per_hour for node in nodes} == {"0.190000"}
    up_s = sum((node.down_time_s or 0.0) - (node.up_time_s or 0.0) for node in nodes)
    assert sum(float(amount.length_s) for amount in report.total.nodes.values()) == pytest.approx(up_s, abs=0.01)
    assert report.total.owed_usd == 0, "the machines are simulated"
    unused_us = sum(
        max(0, round((job.end_time_s or 0.0) * 10**6) - round((job.run_start_time_s or 0.0) * 10**6) - busy_us)
        for job in jobs
        for busy_us in [round(job.replicas[0].status.busy_s * 10**6)]
    )
    assert report.total.server_hours == report.total.machine_hours
    assert report.total.unused_hours == rounded(Fraction(unused_us, 3600 * 10**6), 4)
    assert 0 < report.total.unused_hours < report.total.server_hours


@pytest.mark.heavy
def test_a_service_that_starts_again_goes_on_from_the_recorded_last_use(site: Site) -> None:
    site.set_load(1.0)
    site.step_until_settled(1)
    site.step_until_reported(1.0)
    assert USE_PRECISION_S == WRITE_INTERVAL_S + LOOK_INTERVAL_S
    site.models.note_use(site.version().uid, time_s=time.time())
    site.set_load(0)
    site.step_until_reported(0.0)
    site.deployments = site.start()
    site.step()
    assert site.version().num_servers == 1, "it was used a moment ago"
    site.deployments = site.start()
    site.offset_s += 2 * WINDOW_S + 100.0
    site.step()
    assert site.version().num_servers == 0, "what its server has answered by now was long ago"
