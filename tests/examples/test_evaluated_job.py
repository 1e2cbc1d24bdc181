"""A job whose processes train in step, with an evaluator on a machine of its own that is killed once."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.examples.test_jobs import JOBS, program, wait_for_text

from lockstep.testing.machine import Machine

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]

TIMEOUT_S = 240.0
NUM_EPOCHS = 6
TASK = """
import os
import time

from lockstep.strategies import from_env
from lockstep.topology import Topology
from lockstep.training import BackupAndRestore, SidecarEvaluator

strategy = from_env()
import keras
import numpy as np

keras.utils.set_random_seed(5)
inputs = np.random.default_rng(0).normal(size=(96, 8)).astype("float32")
data = inputs, inputs.sum(1, keepdims=True)
checkpoints = os.environ["AIP_CHECKPOINT_DIR"]
with strategy.scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05), "mse")
if Topology.from_env().task.role == "evaluator":
    SidecarEvaluator(model, data, checkpoints, best_model_url=os.environ["AIP_MODEL_DIR"]).start()
    print("the evaluator ends", flush=True)
else:
    def wait(epoch, logs):
        while epoch == 2 and not os.path.exists("GO_ON"):
            time.sleep(0.05)

    waiting = keras.callbacks.LambdaCallback(on_epoch_end=wait)
    callbacks = [BackupAndRestore(checkpoints), waiting]
    model.fit(*data, batch_size=24, epochs=6, verbose=0, callbacks=callbacks)
"""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path / "machine")
    made.run("cluster", "use", str(JOBS / "cluster.yaml"))
    made.run("up")
    yield made
    made.run("down", "--cancel")
    assert made.processes() == []


def test_an_evaluator_of_a_job_that_trains_in_step(machine: Machine, tmp_path: Path) -> None:
    package, go_on, config = tmp_path / "trainer", tmp_path / "go_on", tmp_path / "config.yaml"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "task.py").write_text(TASK.replace("GO_ON", str(go_on)))
    definition = yaml.safe_load((JOBS / "workers" / "config.yaml").read_text())
    definition["trainingInput"] |= {"workerCount": "1", "evaluatorType": "n1-standard-4", "evaluatorCount": "1"}
    definition["trainingInput"]["lockstep"] = {"restartPolicy": {"maxRestarts": 2}}
    config.write_text(yaml.safe_dump(definition))
    machine.run("submit", "evaluated", "--config", str(config), "--package-path", str(package), "--async")
    wait_for_text(machine, "evaluated", "checkpoint of step ")
    program(machine, "evaluator", 0).kill()
    machine.wait("evaluated", lambda job: job["lockstep"]["numRestarts"] == 1, timeout_s=TIMEOUT_S)
    go_on.touch()
    job = machine.wait("evaluated", lambda job: job["state"] in ("SUCCEEDED", "FAILED"), timeout_s=TIMEOUT_S)
    text = "\n".join(machine.log_texts("evaluated"))
    assert job["state"] == "SUCCEEDED", text
    assert job["lockstep"]["numRestarts"] == 1, "of the evaluator, alone"
    assert "the evaluator ends" in text
    steps = [int(step) for step in re.findall(r"checkpoint of step (\d+): loss", text)]
    assert len(steps) == len(set(steps)), "no step twice"
    assert max(steps) == 4 * NUM_EPOCHS, "the last one too"
    checkpoints = Path(job["lockstep"]["outputs"]["checkpoints"])
    assert sorted(map(int, json.loads((checkpoints / "evaluations.json").read_text()))) == sorted(steps)
    assert (Path(job["lockstep"]["outputs"]["model"]) / "model.keras").exists()
