"""The choice of machines, and what forbids it: a service, or what one that was killed left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.validating import validated
from typer.testing import CliRunner, Result

from lockstep.cli.app import app
from lockstep.clusters import EngineChoice, read_choice
from lockstep.errors import AlreadyRunningError, StorageWriteError, WrongStateError
from lockstep.home import Home
from lockstep.jobs.machines.catalogue import load_catalogue
from lockstep.processes import ProcessIdentity
from lockstep.service.process import lifecycle_lock as lock_module

AWS = """
name: lab
provider: {type: aws, settings: {region: us-east-1}}
headAddress: 10.0.0.5
nodeTypes:
  cpu: {machineType: n1-standard-8, maxNodes: 1, nodeConfig: {ImageId: ami-0, SubnetIds: [subnet-0]}}
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("LOCKSTEP_HOME", str(tmp_path / "home"))
    made = Home(path=tmp_path / "home")
    made.create()
    made.token.write_text("t")
    return made


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["cluster", *words])


def chosen(home: Home) -> EngineChoice:
    return read_choice(home, catalogue=load_catalogue())


def announce(home: Home, process: ProcessIdentity) -> None:
    home.address.write_text(json.dumps({"url": "http://127.0.0.1:1", "process": process.to_json()}))


def dead_process() -> ProcessIdentity:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        identity = ProcessIdentity.of(process.pid)
    assert identity is not None
    return identity


def test_another_cluster_is_chosen_where_no_service_was(home: Home) -> None:
    assert run("attach", "10.0.0.1:6379").exit_code == 0
    assert chosen(home).address == "10.0.0.1:6379"
    assert run("reset").exit_code == 0
    assert chosen(home) == EngineChoice()


@pytest.mark.parametrize("runs", [True, False], ids=["runs", "was-killed"])
def test_not_beside_a_service_nor_what_one_that_was_killed_left(home: Home, runs: bool) -> None:
    announce(home, ProcessIdentity.of_self() if runs else dead_process())
    error = run("attach", "10.0.0.1:6379").exception
    assert isinstance(error, WrongStateError)
    assert ("runs on another cluster" in str(error)) is runs
    assert "stop it with `lockstep down`" in str(error)
    assert chosen(home) == EngineChoice()
    assert run("reset").exit_code == 0, "that changes nothing"
    home.address.unlink()  # as `down` does when all has ended
    assert run("attach", "10.0.0.1:6379").exit_code == 0


def test_not_while_a_service_comes_up_or_goes_down(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_module, "LIFECYCLE_TIMEOUT_S", 0.0)
    with lock_module.lifecycle_lock(home):
        assert isinstance(run("attach", "10.0.0.1:6379").exception, AlreadyRunningError)
    assert chosen(home) == EngineChoice()


def test_a_definition_is_chosen_and_said_as_json(home: Home, tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(AWS)
    assert validated("cluster use", run("use", str(file), "--json").stdout)["cluster"] == "lab"


def test_a_definition_that_cannot_be_written_is_said(home: Home, tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(AWS)
    error = run("generate", str(file), "--output", str(tmp_path / "absent" / "ray.yaml")).exception
    assert isinstance(error, StorageWriteError)
    assert "--output" in str(error)
