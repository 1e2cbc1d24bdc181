"""A running job is profiled by the command line and from Python, over a real service and engine."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from tests.cli.validating import validated
from typer.testing import CliRunner

import lockstep
from lockstep.cli.app import app
from lockstep.client.job import Job
from lockstep.testing.machine import TIMEOUT_S, Machine

SOURCE = Path(lockstep.__file__).parents[1]
PROGRAM = """
import time
from lockstep.strategies import MirroredStrategy
import keras, numpy as np

class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.02)

with MirroredStrategy().scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    model.compile("adam", "mse")
data = np.ones((512, 8), "float32"), np.ones((512, 1), "float32")
model.fit(*data, batch_size=16, epochs=10_000, verbose=0, callbacks=[Slow()])
"""


def test_fewer_steps_than_asked_for_are_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[dict[str, object]] = []

    def fetch(client: object, job: str, **options: object) -> tuple[list[Path], int]:
        asked.append({"job": job, **options})
        return [tmp_path / "a.xplane.pb"], 7

    monkeypatch.setattr("lockstep.cli.profile.connect", lambda project: contextlib.nullcontext())
    monkeypatch.setattr("lockstep.client.profiles.fetch_profile", fetch)
    done = CliRunner().invoke(app, ["profile", "train_1", "--to", str(tmp_path)], catch_exceptions=False)
    assert done.exit_code == 0
    assert "recorded 7 steps of 20: training ended" in done.stdout
    assert "perfetto" not in done.stdout
    options = {"num_steps": 20, "replica": None, "to": tmp_path, "timeout_s": 600.0}
    assert asked == [{"job": "train_1", **options}]


@pytest.mark.heavy
def test_a_running_job_is_profiled(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(PROGRAM)
    config = tmp_path / "config.yaml"
    own = {"env": {"master": {"PYTHONPATH": str(SOURCE)}}}
    config.write_text(json.dumps({"trainingInput": {"lockstep": own}}))
    package = ("--package-path", str(tmp_path / "code"), "--module-name", "train", "--config", str(config))
    machine.run("submit", "profiled", *package, "--async")
    machine.wait(
        "profiled", lambda job: (job["lockstep"]["progress"] or {}).get("step") is not None, timeout_s=3 * TIMEOUT_S
    )
    text = machine.run("profile", "profiled", "--steps", "5", "--to", str(tmp_path / "here"), "--json")
    said = validated("profile", text)
    assert said["numSteps"] == 5
    files = [Path(file) for file in said["files"]]
    assert {file.name for file in files} == {"master-replica-0.xplane.pb", "master-replica-0.trace.json.gz"}
    assert all(file.is_relative_to(tmp_path / "here" / "plugins" / "profile") and file.stat().st_size for file in files)
    out = machine.run("profile", "profiled", "--steps", "2", "--to", str(tmp_path / "again"))
    assert "recorded 2 steps" in out
    assert "https://ui.perfetto.dev" in out
    with machine.client() as client:
        folder = Job("profiled", client=client).profile(3, to=tmp_path / "python")
        artifacts = {artifact["path"] for artifact in client.artifacts("profiled")}
    assert sorted(file.name for file in folder.iterdir()) == sorted(file.name for file in files)
    assert sum(path.endswith(".xplane.pb") for path in artifacts) == 3
    machine.run("cancel", "profiled")
    machine.wait("profiled", lambda job: job["state"] == "CANCELLED")
    assert "only a running job can be profiled" in machine.run("profile", "profiled", code=16)
