"""A model whose servers load nothing: they do what the file of their model says."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Engine

from lockstep.errors import UnavailableError
from lockstep.jobs.machines.catalogue import load_catalogue
from lockstep.jobs.running.states import JobState
from lockstep.service.prediction.deployments import Deployments, is_ready
from lockstep.service.prediction.routing import Routes
from lockstep.service.settings import sqlite_url
from lockstep.service.store import (
    DemandStore,
    JobRecord,
    JobStore,
    ModelStore,
    VersionRecord,
    VersionState,
    open_database,
)
from lockstep.submission.packing import stage_folder
from lockstep.testing.bench import Bench, step_pauses_s

WAIT_S = 30.0

SERVER = '''
"""Accepts connections, and says so. It does what its model's file says."""
import os, pathlib, signal, socket, sys, time
from lockstep.heartbeat import report_progress
from lockstep.topology import Topology

what = pathlib.Path(next(arg for arg in sys.argv if arg.startswith("--model=")).removeprefix("--model=")).read_text()
if what == "broken":
    sys.exit("the reason")
host, _, port = Topology.from_env().synchronous_addresses[0].rpartition(":")
listener = socket.create_server((host, int(port)))
assert len(os.environ["LOCKSTEP_SERVER_TOKEN"]) == 64
while what != "slow":
    report_progress(waiting=0)
    time.sleep(0.1)
    if what == "falls":
        sys.exit("the reason")
time.sleep(600)
'''


class Site:
    """A model, its deployments, and the controller that they stand on."""

    def __init__(self, bench: Bench, path: Path) -> None:
        self.bench = bench
        self.path = path
        self.offset_s = 0.0
        self.database: Engine = open_database(sqlite_url(bench.home))
        self.models = ModelStore(self.database)
        self.jobs = JobStore(self.database)
        self.deployments = self.make_deployments()
        self.routes = Routes(models=self.models, jobs=self.jobs, vault=bench.vault)
        self.models.create_model(project="p", name="m", description="", labels={})
        (path / "code").mkdir()
        (path / "code" / "fake_server.py").write_text(SERVER)
        self.package = stage_folder(path / "code", staging=str(path / "staging"))

    def why_waits(self) -> str:
        (queued,) = [server for server in self.servers() if server.state is JobState.QUEUED]
        return self.bench.controller.schedule.explain(queued).reason

    def make_deployments(self, models: ModelStore | None = None) -> Deployments:
        return Deployments(
            models=models or self.models,
            jobs=self.jobs,
            demands=DemandStore(self.database),
            cluster=self.bench.cluster,
            catalogue=load_catalogue(),
            bucket=str(self.bench.home.bucket),
            folder=self.path / "temporary",
            wake=self.bench.controller.wake,
            clock=lambda: time.time() + self.offset_s,
        )

    def create(self, what: str = "serve", *, name: str = "v1", num_servers: int = 1) -> str:
        """Creates a version; returns the name of the operation."""
        model = self.path / name / "model.keras"
        model.parent.mkdir(exist_ok=True)
        model.write_text(what)
        return self.models.create_version(
            project="p",
            model="m",
            name=name,
            description="",
            labels={},
            deployment_uri=str(model),
            machine_type="n1-standard-4",
            package_uris=[self.package],
            num_servers=num_servers,
        ).name

    def version(self, name: str = "v1") -> VersionRecord:
        return self.models.get_version(project="p", model="m", name=name)

    def servers(self) -> list[JobRecord]:
        return self.jobs.servers()

    def server(self) -> JobRecord:
        (server,) = [server for server in self.servers() if server.state is not JobState.CANCELLING]
        return server

    def step(self) -> None:
        self.bench.step()
        self.deployments.step()

    def step_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        pauses_s = step_pauses_s()
        while not condition():
            assert time.monotonic() < deadline, "\n".join(map(str, (*self.models.list_versions(), *self.servers())))
            self.step()
            time.sleep(next(pauses_s))

    def step_until_state(self, state: VersionState) -> VersionRecord:
        self.step_until(lambda: self.version().state is state)
        return self.version()

    def step_until_ready(self, num_servers: int = 1) -> None:
        self.step_until(lambda: sum(map(is_ready, self.servers())) == num_servers == len(self.servers()))

    def signal(self, number: signal.Signals) -> None:
        pid = self.server().replicas[0].status.pid
        assert pid is not None
        os.kill(pid, number)

    def is_answered(self) -> bool:
        try:
            return bool(self.routes.find(project="p", model="m", version="v1"))
        except UnavailableError:
            return False
