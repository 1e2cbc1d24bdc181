"""Versions and their servers, on a real controller, runner and processes. The servers load no model."""

from __future__ import annotations

import errno
import logging
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection
from tests.service.prediction.deployed import WAIT_S, Site

from lockstep.errors import NotFoundError, StorageError, UnavailableError
from lockstep.jobs.running import supervision
from lockstep.jobs.running.states import JobState
from lockstep.jobs.scheduling import Quota
from lockstep.service.prediction import deployments as deployments_module
from lockstep.service.prediction import servers as servers_module
from lockstep.service.prediction.copying import MAX_COPIES
from lockstep.service.prediction.deployments import MAX_FAILURES, is_ready
from lockstep.service.prediction.routing import MAX_AGE_S, Routes
from lockstep.service.store import (
    LeaseLostError,
    ModelChanges,
    ModelStore,
    VersionRecord,
    VersionState,
)
from lockstep.testing.bench import Bench


@pytest.fixture
def site(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(servers_module, "SERVER_MODULE", "fake_server")
    made = Site(bench, tmp_path)
    yield made
    made.database.dispose()


def test_a_version_is_ready_when_its_server_is_and_goes_with_it(site: Site) -> None:
    creation = site.create()
    with pytest.raises(UnavailableError, match="version v1 of model m is CREATING, and none of its servers is ready"):
        site.routes.find(project="p", model="m", version="v1")
    site.step_until_state(VersionState.READY)
    assert site.models.get_operation(project="p", name=creation).end_time_s is not None
    (address,) = site.routes.find(project="p", model="m", version="v1")
    assert address.url == f"http://{site.server().replicas[0].status.address}"
    assert len(address.token) == 64
    assert address.token not in str(site.server()), "it is recorded nowhere"
    assert site.jobs.last_server(site.version().uid) == site.server()
    assert site.jobs.last_server(site.version().uid, job_id=site.server().job_id) == site.server()
    assert site.jobs.last_server(site.version().uid, job_id="m/v1/another") is None
    deletion = site.models.begin_delete_version(project="p", model="m", name="v1").name
    site.step_until(lambda: site.models.list_versions() == [] == site.servers())
    assert site.models.get_operation(project="p", name=deletion).error_message is None
    with pytest.raises(NotFoundError):
        site.version()


@pytest.mark.heavy
def test_a_version_is_what_was_deployed_whatever_becomes_of_the_original(site: Site) -> None:
    site.create()
    site.step_until_state(VersionState.READY)
    (file,) = site.version().files
    (site.path / "v1" / "model.keras").write_text("broken")
    site.signal(signal.SIGKILL)
    site.step_until(lambda: site.server().num_restarts == 1 and is_ready(site.server()))
    assert Path(file.url).read_text() == "serve"
    Path(file.url).write_text("tampered")
    site.signal(signal.SIGKILL)
    site.step_until(lambda: "has changed since it was copied" in str(site.server().replicas[0].status.end))


def test_a_server_that_cannot_start_fails_its_version_and_says_why(site: Site) -> None:
    creation = site.create("broken")
    version = site.step_until_state(VersionState.FAILED)
    assert version.error_message == "the reason"
    assert site.models.get_operation(project="p", name=creation).error_message == "the reason"
    site.step_until(lambda: not site.servers())
    site.step()
    assert not site.servers(), "no other one is tried"


def test_a_model_that_is_not_there_fails_its_version(site: Site) -> None:
    site.create()
    (site.path / "v1" / "model.keras").unlink()
    version = site.step_until_state(VersionState.FAILED)
    assert "model.keras" in (version.error_message or "")
    assert not site.servers()


def _transient(message: str) -> StorageError:
    """Returns the error of a bucket that may respond later."""
    error = StorageError(message)
    error.__cause__ = TimeoutError()
    return error


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        _transient("the bucket does not respond"),
        ZeroDivisionError("a bug"),
    ],
)
@pytest.mark.heavy
def test_a_version_that_cannot_be_copied_now_holds_up_no_other(
    site: Site, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    site.create(name="v0")
    site.create(name="v1")
    copy = deployments_module.copy_files

    def refuse(version: VersionRecord, **options: Any) -> Any:
        if version.name == "v0":
            raise error
        return copy(version, **options)

    left = site.path / "temporary" / "copy-of-a-killed-service"
    left.mkdir(parents=True)
    monkeypatch.setattr(deployments_module, "copy_files", refuse)
    site.step_until_state(VersionState.READY)
    assert not left.exists()
    assert site.version("v0").state is VersionState.CREATING
    is_expected = not isinstance(error, ZeroDivisionError)
    site.step_until(lambda: site.version("v0").error_message == (str(error) if is_expected else None))
    monkeypatch.undo()
    monkeypatch.setattr(servers_module, "SERVER_MODULE", "fake_server")
    site.step_until(lambda: site.version("v0").state is VersionState.READY)
    assert site.version("v0").error_message is None


@pytest.mark.heavy
def test_a_copy_that_takes_long_delays_no_other_version(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    copy, go_on, begun = deployments_module.copy_files, threading.Event(), list[str]()

    def wait(version: VersionRecord, **options: Any) -> Any:
        begun.append(version.name)
        if version.name != "v1":
            assert go_on.wait(WAIT_S)
        return copy(version, **options)

    monkeypatch.setattr(deployments_module, "copy_files", wait)
    others = [f"w{number}" for number in range(MAX_COPIES - 1)]
    for name in (*others, "v1"):
        site.create(name=name)
    site.step_until_state(VersionState.READY)
    for name in ("x0", "x1"):
        site.create(name=name)
    site.step_until(lambda: "x0" in begun)
    assert "x1" not in begun, "so many are copied at the same time, and no more"
    site.models.begin_delete_version(project="p", model="m", name="x1")
    site.models.begin_delete_version(project="p", model="m", name="x0")
    site.step_until(lambda: "x1" not in [version.name for version in site.models.list_versions()])
    assert site.version("x0").state is VersionState.DELETING, "it is still being copied"
    go_on.set()
    site.step_until(lambda: "x0" not in [version.name for version in site.models.list_versions()])
    left = [path for path in (site.bench.home.bucket / "p" / "models").rglob("x0-*/*") if path.name != "logs"]
    assert left == []
    for name in others:
        site.step_until(lambda name=name: site.version(name).state is VersionState.READY)
    assert sorted(begun) == sorted([*others, "v1", "x0"])


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.heavy)])
def test_a_server_that_dies_or_hangs_is_launched_again_in_its_place(site: Site, number: signal.Signals) -> None:
    site.create()
    site.step_until_state(VersionState.READY)
    before = site.server().replicas[0].status
    site.signal(number)
    site.step_until(lambda: not is_ready(site.server()))
    assert site.version().state is VersionState.READY
    site.step_until_ready()
    after = site.server().replicas[0].status
    assert after.address == before.address
    assert after.pid != before.pid
    assert len(after.restarts) == 1


def test_a_server_whose_node_is_lost_is_replaced_by_another(site: Site) -> None:
    site.create()
    site.step_until_state(VersionState.READY)
    lost = site.server()
    site.bench.cluster.lose_node(f"{lost.uid}-0")
    site.step_until(lambda: site.jobs.get_by_uid(lost.uid).state is JobState.FAILED)
    site.step_until_ready()
    assert site.server().uid != lost.uid
    assert (site.version().state, site.version().num_failures) == (VersionState.READY, 0)


@pytest.mark.heavy
def test_each_server_that_cannot_start_any_more_waits_twice_as_long(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.create()
    site.step_until_state(VersionState.READY)
    Path(site.version().files[0].url).write_text("tampered")
    site.bench.cluster.lose_node(f"{site.server().uid}-0")
    for number in range(1, MAX_FAILURES + 1):
        site.step_until(lambda number=number: site.version().num_failures == number)
        site.step()
        assert not [server for server in site.servers() if server.state is JobState.QUEUED], "it pauses"
        site.offset_s += deployments_module.FIRST_PAUSE_S * 2.0 ** (number - 1)
    version = site.step_until_state(VersionState.FAILED)
    assert "has changed since it was copied" in (version.error_message or "")


@pytest.mark.heavy
def test_a_version_whose_servers_get_ready_and_end_again_and_again_fails_with_the_reason(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "MAX_SERVER_RESTARTS", 0)
    site.create("falls")
    site.step_until_state(VersionState.READY)
    for number in range(1, MAX_FAILURES + 1):
        site.step_until(lambda number=number: site.version().num_failures == number)
        site.offset_s += deployments_module.FIRST_PAUSE_S * 2.0 ** (number - 1)
    version = site.step_until_state(VersionState.FAILED)
    assert version.error_message == "the reason"


def test_a_server_that_stays_ready_ends_the_count_of_failures(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "MAX_SERVER_RESTARTS", 0)
    site.create()
    site.step_until_state(VersionState.READY)
    site.signal(signal.SIGKILL)
    site.step_until(lambda: site.version().num_failures == 1)
    site.offset_s += deployments_module.FIRST_PAUSE_S
    site.step_until_ready()
    site.step()
    assert site.version().num_failures == 1, "it may end again"
    site.offset_s += deployments_module.SETTLED_S
    site.step_until(lambda: site.version().num_failures == 0)


def test_servers_are_as_many_as_wanted_and_share_the_requests(site: Site) -> None:
    site.create(num_servers=3)
    site.step_until_ready(3)
    first, second, third = site.routes.find(project="p", model="m", version="v1")
    site.routes.begin(first)
    assert site.routes.find(project="p", model="m", version="v1")[-1] == first
    site.routes.begin(second)
    site.routes.begin(second)
    assert site.routes.find(project="p", model="m", version="v1") == [third, first, second]
    site.routes.end(first)
    assert site.routes.find(project="p", model="m", version="v1")[-1] == second
    site.models.update_version(site.version(), num_servers=1)
    site.step_until_ready(1)
    assert site.version().state is VersionState.READY


@pytest.mark.heavy
def test_an_update_of_the_number_of_servers_ends_when_they_are_ready(site: Site) -> None:
    site.create()
    site.step_until_ready()

    def patch(num_servers: int) -> str:
        return site.models.patch_version(
            project="p", model="m", name="v1", change=lambda _: {"num_servers": num_servers}
        ).name

    def is_over(name: str) -> bool:
        found = site.models.get_operation(project="p", name=name)
        assert found.error_code is None
        return found.end_time_s is not None

    update = patch(2)
    site.step_until(lambda: len(site.servers()) == 2)
    assert not is_over(update)
    site.step_until(lambda: is_over(update))
    assert sum(map(is_ready, site.servers())) == 2
    assert site.version().update_operation is None
    update = patch(1)
    site.step_until(lambda: is_over(update))
    assert len([server for server in site.servers() if server.state is JobState.RUNNING]) == 1


def test_an_update_of_a_version_that_fails_fails_with_it(site: Site) -> None:
    site.create()
    site.step_until_ready()
    update = site.models.patch_version(project="p", model="m", name="v1", change=lambda _: {"num_servers": 2}).name
    site.models.update_version(site.version(), state=VersionState.FAILED, error_message="the reason")
    assert site.models.get_operation(project="p", name=update).error_message == "the reason"


def test_a_deletion_that_begins_while_a_pass_looks_is_not_undone(site: Site) -> None:
    site.create()
    site.step_until(lambda: bool(site.servers()))
    version = site.version()
    site.models.begin_delete_version(project="p", model="m", name="v1")
    assert not site.models.update_version(version, state=VersionState.READY)
    site.step_until(lambda: site.models.list_versions() == [] == site.servers())


def test_servers_go_on_without_the_service_and_the_next_one_finds_them(site: Site) -> None:
    site.create()
    site.step_until_state(VersionState.READY)
    before = site.server()
    site.bench.restart()
    site.deployments = site.make_deployments()
    for _ in range(5):
        site.step()
    assert site.server().uid == before.uid
    assert site.server().replicas[0].status.pid == before.replicas[0].status.pid


def test_a_pass_ends_when_the_lease_is_lost(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("v1", "v2"):
        site.create(name=name)
    num_writes, stop = 0, threading.Event()

    def guard(_connection: Connection) -> None:
        nonlocal num_writes
        num_writes += 1
        raise LeaseLostError("another service has taken the lease over")

    def has_lease() -> bool:
        if num_writes == 2:  # after one pass that writes
            stop.set()
        assert time.monotonic() < deadline
        return num_writes < 2

    deadline = time.monotonic() + WAIT_S
    deployments = site.make_deployments(ModelStore(site.database, guard=guard))

    def copy_and_write() -> None:
        while time.monotonic() < deadline:  # the first passes begin to copy
            deployments.step()
            time.sleep(0.02)

    with pytest.raises(LeaseLostError):
        copy_and_write()
    assert num_writes == 1, "the second version is left to the holder of the lease"
    deployments.run(stop, has_lease=has_lease)
    assert num_writes == 2
    logged = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert logged == [("WARNING", "another service has taken the lease over")]


@pytest.mark.heavy
def test_the_oldest_version_goes_when_another_one_is_ready_and_the_log_says_why(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    def keep(_: object) -> ModelChanges:
        return ModelChanges(columns={"max_versions": 2})

    caplog.set_level(logging.INFO, logger=deployments_module.__name__)
    site.models.patch_model(project="p", name="m", change=keep, changed_by="ann")
    for name in ("v1", "v2", "v3"):
        site.create(name=name)
        site.step_until(lambda name=name: site.version(name).state is VersionState.READY)
    site.step_until(lambda: len(site.models.list_versions()) == 2)
    assert {version.name for version in site.models.list_versions()} == {"v1", "v3"}, "v1 has the traffic"
    (line,) = [record.getMessage() for record in caplog.records if "is deleted" in record.getMessage()]
    assert line.startswith("version v2 of m in project p is deleted: v3 is READY, and the model keeps no more versions")


def test_servers_that_were_just_found_are_found_again_without_the_database(site: Site) -> None:
    site.create()
    site.step_until_ready()
    now = {"s": 0.0}
    routes = Routes(models=site.models, jobs=site.jobs, vault=site.bench.vault, clock=lambda: now["s"])
    name: dict[str, Any] = {"project": "p", "model": "m", "version": "v1"}
    assert routes.find_again(**name) is None
    found = routes.find(**name)
    site.models.begin_delete_version(project="p", model="m", name="v1")
    assert routes.find_again(**name) == found
    now["s"] = MAX_AGE_S
    assert routes.find_again(**name) is None
    with pytest.raises(UnavailableError):
        routes.find(**name)


def test_the_quota_of_a_project_counts_its_prediction_servers(site: Site) -> None:
    site.bench.settings = replace(site.bench.settings, quotas={"p": Quota(machines=2)})
    site.bench.restart()
    site.deployments = site.make_deployments()
    site.create(num_servers=3)
    site.step_until(lambda: len(site.servers()) == 3 and sum(map(is_ready, site.servers())) == 2)
    assert site.why_waits().startswith("quota of project p: 2 of 2 machines in use by job m/v1/")
    assert site.version().state is VersionState.READY
