"""Models with classes of their own: their package is loaded in the prediction server alone, and only where needed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest
from tests.service.reachable import make_python

from lockstep import serving
from lockstep.serving import ServerCode, ServerFailed, ServerHandle, ServerReady, ServerStarting
from lockstep.serving.process import LOG_FILE, OWN_FOLDER, READY_FILE

USER = 59_777
WAIT_S = 120.0

IS_ROOT = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="only root on Linux may start programs as other users"
)

LAYERS = """
import keras
@keras.saving.register_keras_serializable(package="my_job")
class Scaled(keras.layers.Layer):
    def __init__(self, factor, **options):
        super().__init__(**options)
        self.factor = factor
    def call(self, x):
        return x * self.factor
    def get_config(self):
        return {**super().get_config(), "factor": self.factor}
@keras.saving.register_keras_serializable(package="my_job")
def plus_one(x):
    return x + 1.0
"""
PROGRAM = """
import lockstep
import keras
from my_job.layers import Scaled, plus_one
@keras.saving.register_keras_serializable(package="my_job")
class Whole(keras.Model):
    def __init__(self, **options):
        super().__init__(**options)
        self.scaled = Scaled(3.0)
    def call(self, x):
        return keras.ops.sum(plus_one(self.scaled(x)), axis=1, keepdims=True)
def train():
    import numpy as np
    print("trains")
    whole = Whole()
    whole(np.ones((1, 2), "float32"))
    whole.save("whole.keras")
    layers = [keras.Input((2,)), Scaled(2.0), keras.layers.Activation(plus_one)]
    keras.Sequential(layers).save("layers.keras")
    keras.Sequential(layers[:1] + [keras.layers.ReLU()]).save("plain.keras")
"""
GUARDED = PROGRAM + "if __name__ == '__main__':\n    train()\n"


def _package(folder: Path, files: Mapping[str, str]) -> str:
    code = folder / "my_job"
    code.mkdir()
    for name, text in files.items():
        (code / name).write_text(text)
    archive = folder / "my_job.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(code, "my_job")
    return str(archive)


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a job left."""

    folder: Path
    package: str

    def model(self, name: str) -> str:
        return str(self.folder / f"{name}.keras")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("job")
    package = _package(folder, {"layers.py": LAYERS, "train.py": GUARDED})
    command = [sys.executable, "-W", "ignore", "-m", "my_job.train"]
    subprocess.run(command, cwd=folder, check=True, env={**os.environ, "KERAS_BACKEND": "jax"}, capture_output=True)
    return Job(folder=folder, package=package)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "server"
    serving.stop_all(folder=tmp_path)


def _settled(handle: ServerHandle) -> ServerReady | ServerFailed:
    deadline = time.monotonic() + WAIT_S
    while isinstance(status := serving.poll(handle), ServerStarting):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return status


def _ask(status: ServerReady | ServerFailed, instances: object) -> object:
    assert isinstance(status, ServerReady), status
    headers = {"authorization": f"Bearer {status.token}"}
    answer = httpx.post(f"{status.url}/predict", json={"instances": instances}, headers=headers, timeout=WAIT_S)
    return answer.json()["predictions"]


def _code(job: Job, *, program: str | None = "my_job.train", refusal: str | None = None) -> ServerCode:
    return ServerCode(packages=(job.package,), program=program, refusal=refusal)


def test_layers_and_functions_of_a_package_are_served(job: Job, folder: Path) -> None:
    handle = serving.start_server(model_url=job.model("layers"), folder=folder, code=_code(job, program=None))
    assert _ask(_settled(handle), [[1.0, 2.0]]) == [[3.0, 5.0]]


def test_a_model_of_the_programs_own_class_is_served(job: Job, folder: Path) -> None:
    handle = serving.start_server(model_url=job.model("whole"), folder=folder, code=_code(job))
    assert _ask(_settled(handle), [[1.0, 2.0]]) == [[11.0]]
    assert "trains" not in handle.log_file.read_text()


def test_no_code_is_loaded_for_a_model_of_keras_own_layers(job: Job, folder: Path) -> None:
    code = ServerCode(packages=("/absent/package.tar.gz",), refusal="it is not confined")
    handle = serving.start_server(model_url=job.model("plain"), folder=folder, code=code)
    assert _ask(_settled(handle), [[-1.0, 2.0]]) == [[0.0, 2.0]]


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("files", "model", "said"),
    [
        (None, "layers", "it needs my_job>Scaled, my_job>plus_one, which are not Keras's; deploy it with --job"),
        ({}, "layers", "module my_job.layers of its package cannot be imported: ModuleNotFoundError: No module named"),
        (
            {"layers.py": "import sys; sys.exit(3)"},
            "layers",
            "module my_job.layers of its package cannot be imported: Sy",
        ),
        ({"layers.py": "1 / 0"}, "layers", "cannot be imported: ZeroDivisionError: division by zero"),
        (
            {"layers.py": "Scaled = 1"},
            "layers",
            "its package does not register my_job>Scaled, my_job>plus_one; put @keras",
        ),
        (
            {"layers.py": LAYERS, "train.py": PROGRAM + "train()\n"},
            "whole",
            "my_job>Whole may be defined in my_job.train, the job's program, which cannot be imported without starting",
        ),
    ],
)
def test_what_a_package_lacks_is_said_in_one_line(
    job: Job, folder: Path, tmp_path: Path, files: Mapping[str, str] | None, model: str, said: str
) -> None:
    packages = () if files is None else (_package(tmp_path, {"other.py": "", **files}),)
    code = ServerCode(packages=packages, program="my_job.train")
    handle = serving.start_server(model_url=job.model(model), folder=folder, code=code)
    status = _settled(handle)
    assert isinstance(status, ServerFailed)
    assert said in status.reason
    assert status.reason.startswith(f"cannot load the model {job.model(model)}: ")
    assert "trains" not in handle.log_file.read_text()


def test_where_no_code_may_run_that_is_said(job: Job, folder: Path) -> None:
    handle = serving.start_server(
        model_url=job.model("whole"), folder=folder, code=_code(job, refusal="it would be root")
    )
    status = _settled(handle)
    assert isinstance(status, ServerFailed)
    assert status.reason.endswith("code of a job is not loaded here: it would be root")


SPY = """
import json, os, pathlib, subprocess, sys
def attempt(action):
    try:
        return repr(action())[:80]
    except OSError as error:
        return error.strerror
seen = {path: attempt(lambda: open(path, "rb").read(50)) for path in SECRETS}
seen["write"] = attempt(lambda: pathlib.Path("FOLDER", "x").write_text("x"))
seen["root"] = attempt(lambda: os.setuid(0))
seen["ids"] = [os.getresuid(), os.getresgid(), os.getgroups()]
seen["status"] = [line for line in open("/proc/self/status") if line.startswith(("NoNewPrivs", "CapEff", "CapPrm"))]
seen["env"] = sorted(os.environ)
pathlib.Path(os.environ["HOME"], "seen.json").write_text(json.dumps(seen))
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True, env={})
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="lockstep-served-", dir="/tmp"))
    made.chmod(0o755)
    yield made
    serving.stop_all(folder=made)
    shutil.rmtree(made, ignore_errors=True)


@IS_ROOT
def test_a_package_in_a_confined_server_reads_nothing_of_roots_and_leaves_nothing(
    job: Job, open_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python, variables = make_python(open_folder)
    for name, value in {
        **variables,
        "AWS_SECRET_ACCESS_KEY": "a secret",
        "GOOGLE_APPLICATION_CREDENTIALS": "/k",
    }.items():
        monkeypatch.setenv(name, value)
    folder = open_folder / "server"
    bucket = open_folder / "bucket"
    (bucket / "packages").mkdir(parents=True)
    (bucket / "local").mkdir()
    bucket.chmod(0o700)
    shutil.copy(job.model("layers"), bucket / "local" / "m.keras")
    parent = f"/proc/{os.getpid()}/environ"
    secrets = [str(folder / "token"), str(folder / "server.json"), str(bucket / "local" / "m.keras"), parent]
    spy = SPY.replace("SECRETS", repr(secrets)).replace("FOLDER", str(folder))
    package = shutil.move(_package(tmp_path, {"layers.py": LAYERS + spy}), bucket / "packages")
    code = ServerCode(packages=(str(package),), user=USER, bucket=str(bucket))
    handle = serving.start_server(
        model_url=str(bucket / "local" / "m.keras"), folder=folder, code=code, python=str(python)
    )
    assert _ask(_settled(handle), [[1.0, 2.0]]) == [[3.0, 5.0]]
    seen = json.loads((folder / OWN_FOLDER / "home" / "seen.json").read_text())
    assert {seen[path] for path in [*secrets, "write"]} == {"Permission denied"}
    assert seen["root"] == "Operation not permitted"
    assert seen["ids"] == [[USER] * 3, [USER] * 3, []]
    assert [line.split()[1].strip("0") for line in seen["status"]] == ["", "", "1"]
    assert not [name for name in seen["env"] if name.startswith(("AWS_", "GOOGLE_", "LOCKSTEP_HOME"))]
    _plant(handle, folder)
    serving.stop(handle)
    theirs = [process for process in psutil.process_iter(["uids", "status"]) if USER in process.info["uids"]]
    assert not [process for process in theirs if process.info["status"] != psutil.STATUS_ZOMBIE]
    assert not (folder / OWN_FOLDER).exists()


def _plant(handle: ServerHandle, folder: Path) -> None:
    """The server's user replaces its ready file: by an address elsewhere, by a link, by a pipe."""
    ready = folder / OWN_FOLDER / READY_FILE
    ready.write_text(json.dumps({"pid": handle.pid, "url": "http://169.254.169.254", "input": []}))
    assert isinstance(serving.poll(handle), ServerFailed)
    ready.unlink()
    ready.symlink_to(folder / "server.json")
    assert isinstance(serving.poll(handle), ServerFailed)
    ready.unlink()
    os.mkfifo(ready)
    assert isinstance(serving.poll(handle), ServerFailed)


@IS_ROOT
@pytest.mark.parametrize("which", ["model", "folder", "package"])
def test_a_link_leads_a_confined_server_out_of_no_project(job: Job, open_folder: Path, which: str) -> None:
    bucket = open_folder / "bucket"
    for name in ("mine", "theirs", "packages"):
        (bucket / name).mkdir(parents=True)
    shutil.copy(job.model("layers"), bucket / "theirs" / "m.keras")
    shutil.copy(job.package, bucket / "theirs" / "p.tar.gz")
    model, package = bucket / "theirs" / "m.keras", str(bucket / "packages" / "p.tar.gz")
    if which == "model":
        model = bucket / "mine" / "m.keras"
        model.symlink_to(bucket / "theirs" / "m.keras")
    elif which == "folder":
        (bucket / "mine" / "f").symlink_to(bucket / "theirs")
        model = bucket / "mine" / "f" / "m.keras"
    else:
        Path(package).symlink_to(bucket / "theirs" / "p.tar.gz")
    code = ServerCode(packages=(package,), user=USER, bucket=str(bucket))
    handle = serving.start_server(model_url=str(model), folder=open_folder / "server", code=code)
    status = _settled(handle)
    assert isinstance(status, ServerFailed)
    assert "a link leads outside its folder" in status.reason
    assert (open_folder / "server" / LOG_FILE).stat().st_uid == 0
