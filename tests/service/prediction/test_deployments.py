"""Versions and their servers: real processes, whose model is a pipe that nobody writes to, so that none loads one.

What a server says when it is ready is written by the test, at the moment that the test needs.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from sqlalchemy import Connection

from lockstep.errors import NotFoundError, UnavailableError
from lockstep.service.prediction.deployments import MAX_RESTARTS, RECOVERED_AFTER_S, RESTART_PAUSE_S, Deployments
from lockstep.service.store import (
    LeaseLostError,
    ModelStore,
    OperationRecord,
    VersionRecord,
    VersionState,
    open_database,
)
from lockstep.serving import ServerHandle, start_server
from lockstep.serving.process import LOADING_PREFIX

WAIT_S = 30.0


class Site:
    """One version of a model, its deployments, and a clock that the test sets."""

    def __init__(self, path: Path) -> None:
        self.folder = path / "servers"
        self.model_url = str(path / "model.keras")
        os.mkfifo(self.model_url)
        self.now_s = 1000.0
        self.database = open_database(f"sqlite:///{path / 'd.db'}")
        self.models = ModelStore(self.database)
        self.deployments = Deployments(store=self.models, folder=self.folder, clock=lambda: self.now_s)
        self.models.create_model(project="p", name="m", description="", labels={})
        self.creation = self.models.create_version(
            project="p",
            model="m",
            name="v1",
            description="",
            labels={},
            deployment_uri=self.model_url,
            machine_type="n1-standard-4",
        )

    @property
    def version(self) -> VersionRecord:
        return self.models.get_version(project="p", model="m", name="v1")

    @property
    def handle(self) -> ServerHandle:
        server = self.version.server
        assert server is not None
        return ServerHandle.from_json(server)

    def begin_deletion(self) -> OperationRecord:
        return self.models.begin_delete_version(project="p", model="m", name="v1")

    def step(self, *, after_s: float = 0.0) -> VersionRecord:
        self.now_s += after_s
        self.deployments.step()
        return self.version

    def say_ready(self) -> None:
        ready = {"pid": self.handle.pid, "url": "http://127.0.0.1:1", "input": []}
        self.handle.ready_file.write_text(json.dumps(ready))

    def serve(self) -> VersionRecord:
        """Brings the version to a server that is ready."""
        self.step()
        self.say_ready()
        return self.step()

    def kill(self) -> None:
        process = psutil.Process(self.handle.pid)
        process.kill()
        process.wait(WAIT_S)

    def start_unrecorded(self) -> psutil.Process:
        """Starts the version's server as a service does that is killed before it can record the handle."""
        handle = start_server(model_url=self.model_url, folder=self.folder / "p" / "m" / "v1")
        return psutil.Process(handle.pid)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.deployments.end_all()
    made.database.dispose()


def test_a_version_is_ready_when_its_server_is(site: Site) -> None:
    version = site.step()
    assert (version.state, version.server is not None) == (VersionState.CREATING, True)
    with pytest.raises(UnavailableError, match="CREATING"):
        site.deployments.address(project="p", model="m", version=None)
    site.say_ready()
    assert site.step().state is VersionState.READY
    assert site.models.get_operation(project="p", name=site.creation.name).end_time_s is not None
    address = site.deployments.address(project="p", model="m", version=None)
    assert address.token == site.handle.token_file.read_text()


def test_a_server_that_went_with_its_machine_says_nothing_of_its_model(site: Site) -> None:
    handle = site.step().server
    assert handle is not None
    site.kill()
    gone = {**handle, "process": {**handle["process"], "start": "another-boot/4711"}}
    site.models.update_version(site.version, server=gone)
    version = site.step()
    assert (version.state, version.server, version.num_restarts) == (VersionState.CREATING, None, 0)
    assert site.step().server is not None
    site.say_ready()
    assert site.step().state is VersionState.READY


def test_each_restart_in_a_row_waits_twice_as_long(site: Site) -> None:
    site.serve()
    for number in range(3):
        ended = site.handle
        site.kill()
        version = site.step()
        assert (version.state, version.server, version.num_restarts) == (VersionState.READY, None, number + 1)
        pause_s = RESTART_PAUSE_S * 2**number
        assert site.step(after_s=pause_s * 0.99).server is None
        site.step(after_s=pause_s * 0.02)
        assert site.handle != ended
        site.say_ready()
        site.step()


def test_a_server_that_ends_again_and_again_fails_its_version(site: Site) -> None:
    site.models.update_version(site.serve(), num_restarts=MAX_RESTARTS)
    site.handle.log_file.write_text("the reason\n")
    site.kill()
    version = site.step()
    assert (version.state, version.error_message, version.server) == (VersionState.FAILED, "the reason", None)
    assert site.step(after_s=3600.0) == version


def test_a_server_that_stayed_up_has_its_earlier_ends_forgotten(site: Site) -> None:
    site.models.update_version(site.serve(), num_restarts=MAX_RESTARTS)
    assert site.step(after_s=RECOVERED_AFTER_S * 0.99).num_restarts == MAX_RESTARTS
    assert site.step(after_s=RECOVERED_AFTER_S * 0.02).num_restarts == 0
    site.kill()
    assert site.step().state is VersionState.READY


def test_only_time_in_which_the_server_was_ready_counts_as_recovery(site: Site) -> None:
    site.serve()
    site.kill()
    site.step(after_s=RECOVERED_AFTER_S)
    site.step(after_s=RESTART_PAUSE_S)
    assert site.step(after_s=RECOVERED_AFTER_S).num_restarts == 1, "it loads its model"
    site.say_ready()
    assert site.step(after_s=RECOVERED_AFTER_S).num_restarts == 1, "it is ready only now"
    assert site.step(after_s=RECOVERED_AFTER_S).num_restarts == 0


def test_a_clock_that_is_set_back_does_not_hold_a_restart_up(site: Site) -> None:
    site.serve()
    site.kill()
    assert site.step().server is None
    assert site.step(after_s=-500.0).server is not None


def test_a_server_whose_files_are_broken_is_ended_before_it_is_replaced(site: Site) -> None:
    site.serve()
    process = psutil.Process(site.handle.pid)
    site.handle.ready_file.write_text("{")
    assert site.step().num_restarts == 1
    assert not process.is_running()


def test_a_deletion_that_begins_while_a_pass_looks_is_not_undone(site: Site) -> None:
    site.step()
    process = psutil.Process(site.handle.pid)
    site.say_ready()
    operations: list[OperationRecord] = []

    def clock() -> float:
        if not operations:  # between the look at the version and its change to READY
            operations.append(site.begin_deletion())
        return 0.0

    Deployments(store=site.models, folder=site.folder, clock=clock).step()
    assert site.version.state is VersionState.DELETING
    site.deployments.step()
    assert not process.is_running()
    with pytest.raises(NotFoundError):
        _ = site.version
    (operation,) = operations
    assert site.models.get_operation(project="p", name=operation.name).error_message is None
    assert site.models.get_operation(project="p", name=operation.name).end_time_s is not None


def test_a_server_that_no_version_knows_of_ends_with_its_version(site: Site) -> None:
    process = site.start_unrecorded()
    site.begin_deletion()
    site.deployments.step()
    assert not process.is_running()
    with pytest.raises(NotFoundError):
        _ = site.version


def test_end_all_ends_servers_that_no_version_knows_of(site: Site) -> None:
    process = site.start_unrecorded()
    site.deployments.end_all()
    assert not process.is_running()


def test_a_pass_ends_when_the_lease_is_lost(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.models.create_version(
        project="p",
        model="m",
        name="v2",
        description="",
        labels={},
        deployment_uri=site.model_url,
        machine_type="n1-standard-4",
    )
    num_writes, stop = 0, threading.Event()

    def guard(_connection: Connection) -> None:
        nonlocal num_writes
        num_writes += 1
        raise LeaseLostError("another service has taken the lease over")

    def has_lease() -> bool:
        stop.set()  # after one pass
        return True

    deployments = Deployments(store=ModelStore(site.database, guard=guard), folder=site.folder)
    with pytest.raises(LeaseLostError):
        deployments.step()
    assert num_writes == 1, "the second version is left to the holder of the lease"
    deployments.run(stop, has_lease=has_lease)
    assert num_writes == 2
    logged = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert logged == [("WARNING", "another service has taken the lease over")]


def test_after_end_all_the_versions_get_new_servers(site: Site) -> None:
    site.serve()
    ended = site.handle
    site.deployments.end_all()
    assert not psutil.pid_exists(ended.pid)
    version = site.step()
    assert (version.state, version.num_restarts, version.server_ready_time_s) == (VersionState.READY, 0, None)
    assert site.handle != ended


def test_what_a_server_leaves_that_dies_while_it_loads_is_removed(site: Site) -> None:
    site.step()
    folder = Path(site.handle.folder)
    left = folder / f"{LOADING_PREFIX}dead"
    left.mkdir()
    (left / "model.keras").write_text("half of it")
    site.kill()
    assert site.step().state is VersionState.FAILED
    assert not list(folder.glob(f"{LOADING_PREFIX}*"))
    left.mkdir()
    handle = start_server(model_url=site.model_url, folder=folder)
    assert not left.exists()
    psutil.Process(handle.pid).kill()
