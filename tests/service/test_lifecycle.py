"""Bringing a service down, in the parts that need no engine."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Engine

from lockstep import errors
from lockstep.client import RunningService, ServiceAddress
from lockstep.errors import AlreadyRunningError, CorruptDataError, InvalidInputError, LockstepError
from lockstep.home import Home
from lockstep.processes import ProcessIdentity
from lockstep.service import lifecycle
from lockstep.service.process import lifecycle_lock as lock_module
from lockstep.service.process.lifecycle_lock import lifecycle_lock
from lockstep.service.settings import Settings, home_name
from lockstep.service.store import JobStore, Lease, open_database

TIMEOUT_S = 20.0


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(path=tmp_path / "home")
    made.create()
    return made


@pytest.fixture
def database(home: Home) -> Iterator[Engine]:
    engine = open_database(f"sqlite:///{home.database}")
    yield engine
    engine.dispose()


@pytest.fixture
def sleeping() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def address_of(process: subprocess.Popen[bytes]) -> RunningService:
    identity = ProcessIdentity.of(process.pid)
    assert identity is not None
    return RunningService(address=ServiceAddress(url="http://127.0.0.1:1", token="t"), process=identity)


def submit(database: Engine, job: str) -> None:
    JobStore(database).create(
        project="local", job_id=job, training_input={}, labels={}, simulated=False, outputs={"logs": "/nowhere"}
    )


def test_a_service_with_jobs_is_left_alone(home: Home, database: Engine, sleeping: subprocess.Popen[bytes]) -> None:
    submit(database, "one")
    running = address_of(sleeping)
    assert lifecycle._end_service(database, running, home=home, progress=lambda _: None) == ["one"]
    assert running.process.is_alive


def test_no_job_comes_in_between_the_look_and_the_end(
    home: Home, database: Engine, sleeping: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    running = address_of(sleeping)
    alive_when_submitted: list[bool] = []

    def submit_late() -> None:
        submit(database, "late")
        alive_when_submitted.append(running.process.is_alive)

    submitting = threading.Thread(target=submit_late)
    kill = lifecycle._kill

    def start_submitting_and_kill(processes: list[ProcessIdentity], *, what: str) -> None:
        submitting.start()
        submitting.join(0.3)
        assert submitting.is_alive(), "it waits for the database"
        kill(processes, what=what)

    monkeypatch.setattr(lifecycle, "_kill", start_submitting_and_kill)
    assert lifecycle._end_service(database, running, home=home, progress=lambda _: None) == []
    submitting.join(TIMEOUT_S)
    assert alive_when_submitted == [False], "the service cannot have answered for it"


def test_a_service_ends_also_where_its_choice_of_a_cluster_cannot_be_read_any_more(
    home: Home, database: Engine, sleeping: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    del database
    running = address_of(sleeping)
    monkeypatch.setattr(lifecycle, "find_service", lambda _: running)
    home.cluster.write_text("{")
    with pytest.raises(CorruptDataError, match="choose the cluster again"):
        lifecycle.down(Settings(home=home, bucket=str(home.bucket)), cancel=False, progress=lambda _: None)
    assert not running.process.is_alive, "nobody could choose while it ran"


def test_the_jobs_of_a_shared_database_are_the_holders(home: Home, database: Engine) -> None:
    shared = Settings(home=home, bucket=str(home.bucket), database="postgresql://db/lockstep")
    assert lifecycle._other_holder(shared, database) is None
    other = Lease(database, home="elsewhere", process="pid 1", is_exclusive=False)
    assert other.acquire_or_renew()
    found = lifecycle._other_holder(shared, database)
    assert found is not None
    assert found.description == "elsewhere, pid 1"
    assert lifecycle._other_holder(replace(shared, database=""), database) is None
    other.release()
    assert lifecycle._other_holder(shared, database) is None
    assert Lease(database, home=home_name(home), is_exclusive=False).acquire_or_renew()
    assert lifecycle._other_holder(shared, database) is None


def test_a_service_gets_nothing_of_its_starters_key() -> None:
    theirs = {
        "LOCKSTEP_TOKEN": "lsk_x",
        "LOCKSTEP_TOKEN_FILE": "/k",
        "LOCKSTEP_URL": "https://h",
        "LOCKSTEP_CA_CERT": "c",
    }
    assert lifecycle.service_environment({**theirs, "HOME": "/h", "LOCKSTEP_HOME": "/l"}) == {
        "HOME": "/h",
        "LOCKSTEP_HOME": "/l",
    }


def test_up_and_down_take_turns(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_module, "LIFECYCLE_TIMEOUT_S", 0.0)
    with lifecycle_lock(home) as lock:
        with (
            pytest.raises(AlreadyRunningError, match="another `lockstep up` or `lockstep down`"),
            lifecycle_lock(home),
        ):
            pass
        held = os.dup(lock)  # as a service that starts holds it
    with pytest.raises(AlreadyRunningError), lifecycle_lock(home):
        pass
    os.close(held)
    with lifecycle_lock(home):
        pass


def test_leftovers_are_those_that_carry_the_mark_of_this_homes_spool(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "STOP_TIMEOUT_S", 0.3)
    home.spool.mkdir()
    link = tmp_path / "link"
    link.symlink_to(home.path)

    def start(mark: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["sleep", "600"], cwd=home.spool, env={**os.environ, "LOCKSTEP_SPOOL": mark})

    orphan, through_link = start(f"{home.spool}/gang/replica"), start(f"{link}/spool/gang/replica")
    other, persons = start(f"{home.path}2/spool/gang/replica"), start("")
    try:
        lifecycle._end_leftovers(Home(path=link))
        assert orphan.wait(TIMEOUT_S) == through_link.wait(TIMEOUT_S) == -9
        assert other.poll() is None
        assert persons.poll() is None
    finally:
        for process in (orphan, through_link, other, persons):
            process.kill()
            process.wait(TIMEOUT_S)


@pytest.mark.parametrize(
    "kind",
    [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, LockstepError)],
)
def test_what_ended_the_service_at_its_start_keeps_its_class(kind: type[LockstepError], tmp_path: Path) -> None:
    log = tmp_path / "service.log"
    log.write_text("of an earlier start\n")
    start = log.stat().st_size
    with log.open("a") as file:
        file.write("a warning\nlockstep.service: what was wrong; do this\nanother line\n")
    error = lifecycle._start_error(kind.exit_code, log, start)
    assert type(error) is kind
    assert str(error) == "what was wrong; do this"


@pytest.mark.parametrize("bucket", ["memory://bucket", "relative/bucket", "."])
def test_a_bucket_that_other_processes_do_not_find_is_refused(home: Home, bucket: str) -> None:
    with pytest.raises(InvalidInputError, match="the default bucket: must mean the same place"):
        Settings(home=home, bucket=bucket)
