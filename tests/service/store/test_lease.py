"""Of several services over one database one acts; another goes on when it dies, and it changes nothing once awake."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine
from tests.service.postgres import PASSWORD, Server

from lockstep.jobs.running.states import JobEvent, JobState
from lockstep.service.settings import Settings
from lockstep.service.store import JobStore, Lease, LeaseLostError, ModelStore, holder_of, open_database
from lockstep.service.store.control.lease import TTL_S
from lockstep.testing.scripted_cluster import AttemptScript, ScriptedCluster

SCRIPT = Path(__file__).with_name("controller_process.py")
TIMEOUT_S = 30.0
SHORT_S = 1.5


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    if request.param == "sqlite":
        engine = open_database(f"sqlite:///{tmp_path / 'd.db'}")
    else:
        server: Server = request.getfixturevalue("postgres")
        engine = open_database(server.url(server.create_database_with_tables()), password=PASSWORD)
    yield engine
    engine.dispose()


def make_lease(database: Engine, home: str, *, is_exclusive: bool = False, ttl_s: float = 60.0) -> Lease:
    return Lease(database, home=home, process="pid 1", cluster="engine", is_exclusive=is_exclusive, ttl_s=ttl_s)


def create(store: JobStore, job_id: str = "job") -> str:
    return store.create(
        project="local",
        job_id=job_id,
        training_input={"pythonModule": "program"},
        labels={},
        simulated=False,
        outputs={kind: f"/nowhere/{kind}" for kind in ("model", "checkpoints", "tensorboard", "logs")},
    ).uid


def test_one_holds_it_and_the_next_generation_begins_when_it_is_given_up(database: Engine) -> None:
    first, second = make_lease(database, "first"), make_lease(database, "second")
    assert holder_of(database) is None
    assert first.acquire_or_renew()
    assert not second.acquire_or_renew()
    assert (first.generation, second.generation) == (1, None)
    holder = second.holder()
    assert holder is not None
    assert (holder.home, holder.description, holder.engine, holder.expired) == (
        "first",
        "first, pid 1",
        "engine",
        False,
    )
    assert first.acquire_or_renew(force=True)
    assert first.generation == 1, "a renewal is no change of hands"
    first.release()
    assert second.acquire_or_renew()
    assert second.generation == 2


def test_one_that_is_not_renewed_goes_to_another(database: Engine) -> None:
    first, second = make_lease(database, "first", ttl_s=0.2), make_lease(database, "second")
    assert first.acquire_or_renew()
    wait(second.acquire_or_renew)
    assert not first.acquire_or_renew(force=True)
    assert first.generation is None


def test_nobody_takes_it_whose_engine_is_not_the_one_that_jobs_run_on(database: Engine) -> None:
    first = make_lease(database, "first", ttl_s=0.0)
    assert first.acquire_or_renew()
    stranger = Lease(database, home="stranger", cluster="another engine", is_exclusive=False)
    store = JobStore(database)
    uid = create(store)
    store.advance(uid, JobEvent.PREPARING, detail="", gang_released=False)
    assert not stranger.acquire_or_renew()
    assert stranger.generation is None
    beside = make_lease(database, "beside", ttl_s=0.0)
    assert beside.acquire_or_renew(), "its engine is the jobs' own"
    store.advance(uid, JobEvent.FAILED, detail="")
    assert not stranger.acquire_or_renew(), "the engine holds something of the job still"
    store.update(uid, gang_released=True)
    assert stranger.acquire_or_renew()
    assert stranger.generation == 3


def test_the_only_service_takes_it_at_once(database: Engine) -> None:
    assert make_lease(database, "dead", is_exclusive=True).acquire_or_renew()
    again = make_lease(database, "alive", is_exclusive=True)
    assert again.acquire_or_renew()
    assert again.generation == 2


def test_a_databases_owner_stays_the_same_and_is_no_other_databases(database: Engine, tmp_path: Path) -> None:
    first = make_lease(database, "first")
    assert first.owner == ""
    assert first.acquire_or_renew()
    first.release()
    second = make_lease(database, "second")
    assert second.acquire_or_renew()
    elsewhere = open_database(f"sqlite:///{tmp_path / 'other.sqlite'}")
    other = make_lease(elsewhere, "other", is_exclusive=True)
    assert other.acquire_or_renew()
    assert first.owner == second.owner != other.owner != ""
    elsewhere.dispose()


def test_who_has_lost_it_writes_nothing(database: Engine) -> None:
    open_to_all = JobStore(database)
    uid = create(open_to_all)
    lost = make_lease(database, "lost")
    guarded = JobStore(database, guard=lost.check)
    models = ModelStore(database, guard=lost.check)
    with pytest.raises(LeaseLostError):  # it never had it
        guarded.update(uid, priority=1)
    assert lost.acquire_or_renew()
    guarded.update(uid, priority=2)
    lost.release()
    assert make_lease(database, "next").acquire_or_renew()
    lost._generation = 1  # as one that was suspended believes
    before = open_to_all.get_by_uid(uid)
    for write in (
        lambda: guarded.advance(uid, JobEvent.PREPARING, detail=""),
        lambda: guarded.update(uid, priority=3),
        lambda: models.create_model(project="p", name="m", description="", labels={}),
    ):
        lost._generation = 1
        with pytest.raises(LeaseLostError):
            write()
    assert open_to_all.get_by_uid(uid) == before
    assert len(open_to_all.events(uid)) == 1
    assert before.priority == 2


def wait(condition: Callable[[], Any], *, timeout_s: float = TIMEOUT_S) -> Any:
    """Returns what a condition returns once that is true."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)
    return found


class Services:
    """Controllers in processes of their own over one PostgreSQL and one engine."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.folder = folder
        self._url = server.url(server.create_database_with_tables())
        self._database = open_database(self._url, password=PASSWORD)
        self.store = JobStore(self._database)
        self.cluster = ScriptedCluster(folder / "engine", script=[AttemptScript.RUNS])
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *, ttl_s: float = SHORT_S, suspend_before: str | None = None) -> None:
        command = [sys.executable, str(SCRIPT), self._url, str(self.folder), name, str(ttl_s)]
        more = [] if suspend_before is None else [suspend_before]
        self.processes[name] = subprocess.Popen([*command, *more], env={**os.environ, "PGPASSWORD": PASSWORD})

    def said(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def wait_for(self, name: str, line: str) -> None:
        wait(lambda: line in self.said(name))

    def send(self, name: str, number: signal.Signals) -> None:
        self.processes[name].send_signal(number)
        if number is signal.SIGKILL:
            self.processes[name].wait(TIMEOUT_S)

    def wait_for_state(self, job_id: str, state: JobState) -> None:
        wait(lambda: self.store.get(project="local", job_id=job_id).state is state)

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait(TIMEOUT_S)
        self._database.dispose()


@pytest.fixture
def services(tmp_path: Path, postgres: Server) -> Iterator[Services]:
    made = Services(tmp_path, postgres)
    yield made
    made.close()


@pytest.mark.heavy
def test_another_service_goes_on_within_ten_seconds_of_a_death(services: Services) -> None:
    services.start("first", ttl_s=TTL_S)
    services.wait_for("first", "generation 1")
    services.start("second", ttl_s=TTL_S)
    uid = create(services.store)
    services.wait_for_state("job", JobState.RUNNING)
    services.wait_for("second", "generation None")
    services.send("first", signal.SIGKILL)
    died = time.monotonic()
    create(services.store, "next")
    services.wait_for_state("next", JobState.RUNNING)
    assert time.monotonic() - died < 10.0
    assert services.said("second") == ["generation None", "generation 2"]
    assert [event.state for event in services.store.events(uid)] == ["QUEUED", "PREPARING", "RUNNING"]
    assert len(services.cluster.starts()) == 2, "what ran already was adopted"


@pytest.mark.heavy
def test_one_that_slept_while_it_was_replaced_starts_nothing(services: Services) -> None:
    services.start("first", suspend_before="place")
    services.wait_for("first", "generation 1")
    uid = create(services.store)
    services.wait_for("first", "suspended")  # it has recorded that the gang is to be placed, and has not placed it
    services.start("second")
    services.wait_for_state("job", JobState.RUNNING)
    services.send("first", signal.SIGCONT)
    services.wait_for("first", "generation None")
    (start,) = services.cluster.starts()
    assert start.gang_id == f"{uid}-1"
    assert "second" in services.processes
    services.send("second", signal.SIGKILL)
    services.wait_for("first", "generation 3")
    create(services.store, "next")
    services.wait_for_state("next", JobState.RUNNING)
    assert [event.state for event in services.store.events(uid)] == ["QUEUED", "PREPARING", "RUNNING"]


@pytest.mark.heavy
def test_one_that_sleeps_within_a_transaction_does_not_keep_the_others(services: Services) -> None:
    services.start("first", suspend_before="INSERT INTO job_events")
    services.wait_for("first", "generation 1")
    uid = create(services.store)
    services.wait_for("first", "suspended")
    services.start("second")
    services.wait_for_state("job", JobState.RUNNING)
    services.send("first", signal.SIGCONT)
    services.wait_for("first", "generation None")
    assert [start.gang_id for start in services.cluster.starts()] == [f"{uid}-0"], "nothing of it had been recorded"
    assert [event.state for event in services.store.events(uid)] == ["QUEUED", "PREPARING", "RUNNING"]


def test_the_time_until_another_goes_on_is_known() -> None:
    poll_s = Settings.__dataclass_fields__["poll_interval_s"].default
    assert TTL_S + poll_s < 8.0, "some seconds are left for a slow database and for placing"
