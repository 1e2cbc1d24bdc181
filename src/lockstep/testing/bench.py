"""A service without Ray and HTTP, for tests: the store on a real SQLite file, the controller, and the test cluster."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, final

from sqlalchemy import Engine

from lockstep.clusters import AbstractCluster
from lockstep.home import Home
from lockstep.jobs.input.documents import parse_training_input
from lockstep.jobs.machines.catalogue import Catalogue, load_catalogue
from lockstep.jobs.running.states import TERMINAL, JobState
from lockstep.service.billing.spending import open_spending
from lockstep.service.control.controller import Controller
from lockstep.service.control.provisioner import Provisioner
from lockstep.service.problems import Problems
from lockstep.service.security.vault import Vault
from lockstep.service.settings import Settings, sqlite_url
from lockstep.service.store import (
    JobKind,
    JobRecord,
    JobStore,
    Lease,
    ModelStore,
    NodeStore,
    SearchStore,
    SecretStore,
    SpendingStore,
    open_database,
)
from lockstep.service.telemetry.scalars import ScalarCache
from lockstep.service.tuning.searches import Searches
from lockstep.submission.packing import stage_folder
from lockstep.testing.local_cluster import LocalCluster

TIMEOUT_S = 30.0


def step_pauses_s() -> Iterator[float]:
    """Yields the pauses between steps, in seconds: longer ones once a step only waits for a process."""
    return itertools.chain(itertools.repeat(0.02, 15), itertools.repeat(0.1))


def make_controller(
    database: Engine,
    *,
    cluster: AbstractCluster,
    settings: Settings,
    problems: Problems,
    provisioner: Provisioner | None = None,
    catalogue: Catalogue | None = None,
    clock: Callable[[], float] = time.time,
) -> Controller:
    """Returns the controller of the only service over a database."""
    lease = Lease(database, is_exclusive=True)
    return Controller(
        store=JobStore(database, clock=clock, guard=lease.check),
        models=ModelStore(database, clock=clock),
        lease=lease,
        vault=Vault(store=SecretStore(database), key_path=settings.home.secret_key),
        cluster=cluster,
        catalogue=catalogue or load_catalogue(),
        settings=settings,
        provisioner=provisioner,
        spending=open_spending(
            store=SpendingStore(database, guard=lease.check),
            catalogue=catalogue or load_catalogue(),
            budgets=settings.budgets,
            quotas=settings.quotas,
        ),
        problems=problems,
        clock=clock,
    )


def make_searches(database: Engine, *, settings: Settings, clock: Callable[[], float] = time.time) -> Searches:
    """Returns the loop over searches of the only service over a database. It reads metrics in each pass."""
    return Searches(
        store=SearchStore(database, clock=clock),
        jobs=JobStore(database, clock=clock),
        scalars=ScalarCache(),
        bucket=settings.bucket,
        wake=lambda: None,
        clock=clock,
        measure_every_s=0.0,
    )


@contextlib.contextmanager
def open_bench(
    settings: Settings, *, database: Engine | None = None, cluster: LocalCluster | None = None
) -> Iterator[Bench]:
    """Yields a bench, and shuts it and its cluster down at the end.

    Args:
        settings: the settings of the bench, with its home.
        database: an open database. By default, the home's own SQLite file.
        cluster: the cluster engine. By default, a new one.
    """
    database = database or open_database(sqlite_url(settings.home))
    cluster = cluster or LocalCluster()
    problems = Problems()
    try:
        yield Bench(
            home=settings.home,
            settings=settings,
            store=JobStore(database),
            vault=Vault(store=SecretStore(database), key_path=settings.home.secret_key),
            cluster=cluster,
            controller=make_controller(database, cluster=cluster, settings=settings, problems=problems),
            problems=problems,
            searches=make_searches(database, settings=settings),
        )
    finally:
        cluster.shut_down()
        database.dispose()


@final
@dataclass(kw_only=True)
class Bench:
    """A controller over a store and a cluster. The test runs each of its steps."""

    home: Home
    settings: Settings
    store: JobStore
    vault: Vault
    cluster: LocalCluster
    controller: Controller
    problems: Problems
    searches: Searches
    provisioner: Provisioner | None = None
    clock: Callable[[], float] = time.time
    """The clock, in seconds since 1970 UTC. A change applies from the next `restart` on."""

    def restart(self) -> None:
        """Simulates a service that was killed and started again: everything in its memory is lost."""
        database = open_database(sqlite_url(self.home))
        self.store = JobStore(database, clock=self.clock)
        self.vault = Vault(store=SecretStore(database), key_path=self.home.secret_key)
        self.problems = Problems()
        if self.cluster.provisioning is not None:
            self.provisioner = Provisioner(
                store=NodeStore(database),
                cluster=self.cluster,
                provisioning=self.cluster.provisioning,
                catalogue=load_catalogue(),
                problems=self.problems,
            )
        self.controller = make_controller(
            database,
            cluster=self.cluster,
            settings=self.settings,
            problems=self.problems,
            provisioner=self.provisioner,
            clock=self.clock,
        )
        self.searches = make_searches(database, settings=self.settings, clock=self.clock)

    def step(self) -> None:
        """Runs one step of the controller, after a refresh of the provisioner if there is one."""
        if self.provisioner is not None:
            self.provisioner.refresh()
        self.controller.step()
        self.searches.step()

    def create(self, job_id: str, script: str = "", **training_input: Any) -> JobRecord:
        """Records a job whose program is a Python one-liner."""
        code = self.home.path / "code" / job_id
        code.mkdir(parents=True)
        (code / "program.py").write_text(script)
        url = stage_folder(code, staging=str(self.home.path / "staging"))
        document = {"pythonModule": "program", "packageUris": [url], **training_input}
        outputs = {kind: str(self.home.bucket / job_id / kind) for kind in ("model", "checkpoints", "tensorboard")}
        scheduling = parse_training_input({"trainingInput": document}, source="bench").scheduling
        return self.store.create(
            project="local",
            job_id=job_id,
            training_input=document,
            labels={},
            simulated=False,
            outputs={**outputs, "logs": str(self.home.bucket / job_id / "logs")},
            priority=0 if scheduling is None else scheduling.priority,
            max_wait_time_s=None if scheduling is None else scheduling.max_wait_time_s,
            kind=JobKind.SEARCH if "hyperparameters" in training_input else JobKind.TRAINING,
        )

    def job(self, job_id: str) -> JobRecord:
        """Returns a job from the database."""
        return self.store.get(project="local", job_id=job_id)

    def step_until(self, job_id: str, condition: Callable[[JobRecord], bool]) -> JobRecord:
        """Steps the controller until a job meets a condition. Fails after `TIMEOUT_S`."""
        deadline = time.monotonic() + TIMEOUT_S
        for pause_s in step_pauses_s():
            self.step()
            job = self.job(job_id)
            if condition(job):
                return job
            if time.monotonic() > deadline:
                break
            time.sleep(pause_s)
        raise AssertionError(f"job {job_id} did not get there: {self.job(job_id)}")

    def step_until_state(self, job_id: str, state: JobState) -> JobRecord:
        """Steps the controller until a job is in a state."""
        return self.step_until(job_id, lambda job: job.state is state)

    def step_until_over(self, job_id: str) -> JobRecord:
        """Steps the controller until a job has ended and the engine has released its gang."""
        return self.step_until(job_id, lambda job: job.state in TERMINAL and job.gang_released)
