"""A model behind the service: deployed, asked, killed, adopted, replaced."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

import httpx
import keras
import numpy as np
import pytest
from tests.cli.validating import validated

import lockstep  # selects Keras's backend, so it goes before Keras
from lockstep.client.addresses import find_address
from lockstep.errors import LockstepError
from lockstep.serving.exporting import Format, export_model
from lockstep.submission.packing import stage_folder
from lockstep.testing.machine import TIMEOUT_S, Machine

assert lockstep is not None

pytestmark = pytest.mark.filterwarnings(
    # Keras's variables implement NumPy's __array__ by its older form; saving a model meets it.
    "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"
)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model that sums its two inputs."""
    folder = tmp_path_factory.mktemp("model")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.save(folder / "model.keras")
    return folder


def _predict(machine: Machine, tmp_path: Path, instances: list[object], *, code: int = 0) -> str:
    request = tmp_path / "request.json"
    request.write_text(json.dumps({"instances": instances}))
    return machine.run("predict", "sums", "--json-request", str(request), code=code)


def _server_pid(machine: Machine) -> int:
    (server,) = (process for process in machine.processes() if "lockstep.serving" in process.cmdline())
    return server.pid


def _wait_for_answer(machine: Machine, *, model: str = "sums") -> list[object]:
    deadline = time.monotonic() + TIMEOUT_S
    with machine.client() as client:
        while True:
            try:
                return client.predict(model, [[1.0, 2.0]])
            except LockstepError:
                assert time.monotonic() < deadline
                time.sleep(0.05)


def test_a_model_is_deployed_and_predicts(machine: Machine, model_folder: Path, tmp_path: Path) -> None:
    out = machine.run("deploy", "sums", "--model-url", str(model_folder))
    assert "version v1 (default), is ready" in out
    answer = json.loads(_predict(machine, tmp_path, [[1.0, 2.0], [3.0, 4.0]]))
    assert answer == {"predictions": [[3.0], [7.0]]}
    assert "sums/v1 READY" in machine.run("status")


def test_a_bad_instance_is_said(machine: Machine, tmp_path: Path) -> None:
    error = _predict(machine, tmp_path, [[1.0, 2.0, 3.0]], code=64)
    assert len(error.splitlines()) == 1
    request = tmp_path / "request.json"
    request.write_bytes(b"\x93NUMPY\xff\xfe")
    error = machine.run("predict", "sums", "--json-request", str(request), code=64)
    assert f"--json-request: {request} is not JSON" in error
    assert len(error.splitlines()) == 1


def test_what_is_no_number_is_said(machine: Machine, tmp_path: Path) -> None:
    error = _predict(machine, tmp_path, [[float("nan"), 2.0]], code=64)
    assert "NaN is not valid JSON" in error
    with machine.client() as client, pytest.raises(LockstepError, match="cannot be written as JSON"):
        client.predict("sums", [[float("inf"), 2.0]])


def test_a_killed_server_is_started_again(machine: Machine) -> None:
    before = _server_pid(machine)
    os.kill(before, signal.SIGKILL)
    assert _wait_for_answer(machine) == [[3.0]]
    assert _server_pid(machine) != before
    log, deadline = "", time.monotonic() + TIMEOUT_S
    while log.count(" at 127.0.0.") < 2:  # it says where it serves each time that it is launched; the log comes later
        assert time.monotonic() < deadline, log
        log = machine.run("logs", "--model", "sums/v1")
    assert log == machine.run("logs", "--model", "sums")
    assert "lockstep: launched again (restart 1): MACHINE_ERROR(SIGKILL, master-0)" in log
    assert "model sums has no version 'v7'" in machine.run("logs", "--model", "sums/v7", code=12)


def test_a_server_outlives_the_service_and_is_adopted(machine: Machine) -> None:
    before = _server_pid(machine)
    machine.kill_service()
    machine.run("up")
    assert _wait_for_answer(machine) == [[3.0]]
    assert _server_pid(machine) == before


def test_a_second_version_becomes_the_default_and_the_first_can_be_named(
    machine: Machine, model_folder: Path, tmp_path: Path
) -> None:
    doubled = tmp_path / "doubled.keras"
    model = keras.Sequential(
        [keras.Input((2,)), keras.layers.Dense(1, kernel_initializer=keras.initializers.Constant(2.0))]
    )
    model.save(doubled)
    machine.run("deploy", "sums", "--model-url", str(doubled))
    with machine.client() as client:
        assert client.predict("sums", [[1.0, 2.0]]) == [[6.0]]
        assert client.predict("sums", [[1.0, 2.0]], version="v1") == [[3.0]]


@pytest.mark.heavy
def test_no_request_is_lost_while_the_traffic_moves_and_a_version_goes(machine: Machine) -> None:
    """Runs real servers. The versions are those of the tests before: v1 returns 3, and v2, the default, 6."""
    right, stop = {"v1": [[3.0]], "v2": [[6.0]]}, threading.Event()
    counted: Counter[str] = Counter()
    lost: list[str] = []
    address = find_address(machine.home, env={})

    def call() -> None:
        with httpx.Client(base_url=address.url, headers={"authorization": f"Bearer {address.token}"}) as http:
            while not stop.is_set():
                path = "/v1/projects/local/models/sums:predict"
                answer = http.post(path, json={"instances": [[1.0, 2.0]]}, timeout=TIMEOUT_S)
                version = answer.headers.get("x-lockstep-version", "none")
                if answer.status_code == 200 and answer.json()["predictions"] == right.get(version):
                    counted[version] += 1
                else:
                    lost.append(f"{answer.status_code}, version {version}: {answer.text}")

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    try:
        assert machine.run("models", "traffic", "sums", "v1=50", "v2=50") == "traffic of sums: v2 50%, v1 50%\n"
        deadline = time.monotonic() + TIMEOUT_S
        while counted["v1"] < 20:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert machine.run("models", "rollback", "sums") == "traffic of sums: v2 100%\n"
        machine.run("models", "set-default", "sums/v1")
        undeployed = validated("undeploy", machine.run("undeploy", "sums/v2", "--json"))
        assert undeployed == {"model": "sums", "versions": ["v2"]}
        after = counted["v1"]
        while counted["v1"] < after + 20:
            assert time.monotonic() < deadline + TIMEOUT_S
            time.sleep(0.05)
    finally:
        stop.set()
        for caller in callers:
            caller.join(TIMEOUT_S)
    assert lost == []
    assert "versions: v1\n" in machine.run("models", "describe", "sums")


ROUTINE = """
import pathlib
class Predictor:
    @classmethod
    def from_path(cls, model_dir):
        made = cls()
        made.words = pathlib.Path(model_dir, "words.txt").read_text().split()
        return made
    def predict(self, instances, unknown=0):
        return [self.words.index(word) + 1 if word in self.words else unknown for word in instances]
"""


def test_a_routine_and_an_exported_program_are_deployed_and_predict(
    machine: Machine, model_folder: Path, tmp_path: Path
) -> None:
    code, artifacts = tmp_path / "code", tmp_path / "artifacts"
    for folder in (code, artifacts):
        folder.mkdir()
    (code / "predictor.py").write_text(ROUTINE)
    (artifacts / "words.txt").write_text("red green")
    package = stage_folder(code, staging=str(tmp_path / "staging"))
    routine = ("--package-uri", package, "--prediction-class", "predictor.Predictor")
    machine.run("deploy", "words", "--model-url", str(artifacts), *routine)
    (tmp_path / "request.json").write_text('{"instances": ["green", "blue"], "unknown": -1}')
    answer = machine.run("predict", "words", "--json-request", str(tmp_path / "request.json"))
    assert json.loads(answer) == {"predictions": [2, -1]}
    export_model(model_folder / "model.keras", to=Format.STABLEHLO, path=tmp_path / "sums.stablehlo")
    deployed = machine.run("deploy", "exported", "--model-url", str(tmp_path / "sums.stablehlo"), "--json")
    assert validated("deploy", deployed)["isDefault"] is True
    assert _wait_for_answer(machine, model="exported") == [[3.0]]
    assert "compiled" in machine.run("logs", "--model", "exported")


DOCS = Path(__file__).parents[2] / "docs"
TRAINED = """
import os, pathlib, shutil, sys
shutil.copy(sys.argv[1], pathlib.Path(os.environ["AIP_MODEL_DIR"], "model.keras"))
"""
"""A program that leaves a model as one that trains does."""


def _blocks(page: str, language: str) -> list[str]:
    found = re.findall(rf"^```{language}\n(.*?)^```$", (DOCS / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return [block.replace("\\\n", " ") for block in found]


def _commands(page: str, verb: str) -> list[list[str]]:
    """Returns the words of the commands with a verb in the shell blocks of a page."""
    lines = "".join(_blocks(page, "bash")).splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith(f"lockstep {verb} ")]


def _post_as_curl(command: str, variables: Mapping[str, str]) -> Any:
    """Sends the request that a call of curl would send; returns the JSON of its answer."""
    program, _, *words = shlex.split(Template(command).substitute(variables))
    url, *flags = words
    given = dict(zip(flags[::2], flags[1::2], strict=True))
    assert (program, set(given)) == ("curl", {"--header", "--json"})
    name, _, value = given["--header"].partition(": ")
    headers = {name: value, "content-type": "application/json"}
    return httpx.post(url, headers=headers, content=given["--json"], timeout=TIMEOUT_S).raise_for_status().json()


@pytest.fixture(scope="module")
def documented(machine: Machine, model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the page about predictions names, after a job that left a model."""
    requests = [block for block in _blocks("prediction.md", "json") if block.startswith('{"instances"')]
    folder = tmp_path_factory.mktemp("documented")
    (folder / "request.json").write_text(requests[0])
    code = folder / "code"
    code.mkdir()
    (code / "train.py").write_text(TRAINED)
    program = ("--package-path", str(code), "--module-name", "train")
    machine.run("submit", "train_1", *program, "--stream-logs", "--", str(model_folder / "model.keras"))
    return folder


def test_the_quick_start_of_the_page_runs(machine: Machine, documented: Path) -> None:
    deploy, *_ = _commands("prediction.md", "deploy")
    (predict,) = _commands("prediction.md", "predict")
    assert deploy == ["deploy", "digits", "--job", "train_1"]
    assert "version v1 (default), is ready" in machine.run(*deploy)
    predictions = json.loads(machine.run(*predict, cwd=documented))["predictions"]
    assert np.ravel(predictions) == pytest.approx([0.3, 0.7])
    address = find_address(machine.home, env={})
    variables = {"LOCKSTEP_URL": address.url, "LOCKSTEP_TOKEN": address.token}
    calls = [block for block in _blocks("calling-models.md", "bash") if block.startswith("curl ")]
    assert len(calls) == 2, "the contract's form and Vertex AI's"
    for call in calls:
        assert _post_as_curl(call, variables)["predictions"] == predictions


@pytest.mark.heavy
def test_every_way_to_deploy_of_the_page_runs(machine: Machine, documented: Path, model_folder: Path) -> None:
    commands = _commands("prediction.md", "deploy")
    assert len(commands) == 4
    for command in commands:
        local = [word.replace("gs://bucket/net.keras", str(model_folder / "model.keras")) for word in command]
        bucket = machine.home.bucket / "local" / "request-logs"
        assert "is ready" in machine.run(*(word.replace("gs://bucket/requests", str(bucket)) for word in local))
        assert json.loads(machine.run("predict", command[1], "--json-request", str(documented / "request.json")))


@pytest.mark.heavy
def test_what_is_no_model_is_said(machine: Machine, tmp_path: Path) -> None:
    said = machine.run("deploy", "broken", "--model-url", str(tmp_path), code=18)
    [error] = [line for line in said.splitlines() if not line.startswith("-- broken/v1 is ")]
    assert str(tmp_path) in error
    error = machine.run("deploy", "broken", "--model-url", "none.keras", code=18, cwd=tmp_path)
    assert f"there is no object {tmp_path}/none.keras" in error, "the server works in another folder"


@pytest.mark.heavy
def test_servers_end_with_down_and_come_back_with_up(machine: Machine, model_folder: Path) -> None:
    machine.run("deploy", "kept", "--model-url", str(model_folder))
    machine.run("down")
    assert machine.processes() == []
    machine.run("up")
    assert _wait_for_answer(machine, model="kept") == [[3.0]]
