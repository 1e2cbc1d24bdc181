"""``BackupAndRestore`` under parameter servers: real processes, which end and are started again with others."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from tests.parameter_server.role_threads import TIMEOUT_S, RoleThreads

from lockstep.checkpoints import CheckpointDirectory
from lockstep.parameter_server import Embedding
from lockstep.parameter_server.checkpointing.cluster_checkpoints import ClusterCheckpoints
from lockstep.strategies import OneDeviceStrategy
from lockstep.testing.script_cluster import ScriptCluster
from lockstep.training import BackupAndRestore

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")

SCRIPT = """
import sys
from lockstep.parameter_server import Embedding, LocalProcesses, ParameterServerStrategy

strategy = ParameterServerStrategy(LocalProcesses(), num_backup_workers=0 if "synchronous" in sys.argv else None)
import keras
import numpy as np
from lockstep.training import BackupAndRestore
from tests.parameter_server.checkpointing.test_backups import make_model, make_rows, total

folder, epochs = sys.argv[1], int(sys.argv[2])
with strategy.scope():
    model = make_model()

class Show(keras.callbacks.Callback):
    def show(self, when):
        print(when, "with", total(self.model), flush=True)

    def on_epoch_begin(self, epoch, logs=None):
        self.show(f"epoch {epoch} begins")

    def on_train_end(self, logs=None):
        self.model.jax_state_sync()
        self.show("ends")

model.fit(*make_rows(), batch_size=8, steps_per_epoch=10, epochs=epochs, verbose=0,
          callbacks=[BackupAndRestore(folder), Show()])
"""
NUM_IDS = 300
ROOT = Path(__file__).parents[3]


def make_model() -> Any:
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((4,), dtype="int32"),
            Embedding(NUM_IDS, 3, name="e", optimizer="adam"),
            keras.layers.Flatten(),
            keras.layers.Dense(3, name="a"),
            keras.layers.BatchNormalization(name="n"),
            keras.layers.Dropout(0.5, seed=2),
            keras.layers.Dense(1, name="b"),
        ],
        name="m",
    )
    model.compile("adam", "mse")
    return model


def make_rows() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    ids = np.random.default_rng(0).integers(0, NUM_IDS - 100, (80, 4)).astype(np.int32)
    return ids, (ids % 7).sum(1).astype(np.float32)


def total(model: Any) -> list[float]:
    """Sums of all variables, and of all rows of the table by what the model computes of them."""
    rows = np.asarray(model.get_layer("e")(np.arange(NUM_IDS, dtype=np.int32)))
    dense = [np.asarray(v.value) for v in model.trainable_variables if "embeddings" not in v.path]
    return [round(float(np.sum(array)), 3) for array in (*dense, rows)]


NUM_STEPS = 10


def run(tmp_path: Path, backups: Path, epochs: int, *, num_servers: int, mode: str) -> str:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    folder = tmp_path / f"until {epochs}"
    folder.mkdir()
    command = [script, str(backups), str(epochs), mode]
    env = {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    with ScriptCluster(command, folder=folder, num_workers=2, num_servers=num_servers, env=env) as cluster:
        assert cluster.end("chief") == 0
        return cluster.text("chief")


def saved_step(backups: Path) -> int:
    with CheckpointDirectory(backups) as directory:
        state = directory.restore()
    assert state is not None
    assert int(np.asarray(state.arrays["optimizer"]["0"])) == state.position.step
    assert state.position.epoch * NUM_STEPS == state.position.step
    return state.position.step


@pytest.mark.heavy
@pytest.mark.parametrize("mode", ["asynchronous", "synchronous"])
def test_a_training_goes_on_over_other_servers_and_without_any(tmp_path: Path, mode: str) -> None:
    backups = tmp_path / "backups"
    first = run(tmp_path, backups, 2, num_servers=2, mode=mode)
    assert saved_step(backups) == 2 * NUM_STEPS
    second = run(tmp_path, backups, 4, num_servers=1, mode=mode)
    assert saved_step(backups) == 4 * NUM_STEPS
    assert "going on with epoch 3, batch 1 (step 21)" in second
    values = first.partition("ends with ")[2].splitlines()[0]
    assert f"epoch 2 begins with {values}" in second

    with OneDeviceStrategy().scope():
        model = make_model()
    shown: list[list[float]] = []
    show = keras.callbacks.LambdaCallback(on_epoch_begin=lambda _epoch, _logs: shown.append(total(model)))
    model.fit(*make_rows(), batch_size=8, epochs=5, verbose=0, callbacks=[BackupAndRestore(backups), show])
    assert f"ends with {shown[0]}" in second
    model.jax_state_sync()
    assert saved_step(backups) == 5 * NUM_STEPS
    third = run(tmp_path, backups, 6, num_servers=1, mode=mode)
    assert f"epoch 5 begins with {total(model)}" in third
    assert saved_step(backups) == 6 * NUM_STEPS


@pytest.mark.heavy
@pytest.mark.parametrize("mode", ["asynchronous", "synchronous"])
def test_a_coordinator_that_was_killed_goes_on_with_the_servers_and_workers_that_are_there(
    tmp_path: Path, mode: str
) -> None:
    script, backups = tmp_path / "script.py", tmp_path / "backups"
    script.write_text(SCRIPT)
    command = [script, str(backups), "40", mode]
    env = {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    with ScriptCluster(command, folder=tmp_path, num_workers=2, num_servers=2, env=env) as cluster:
        cluster.wait_for("epoch 3 begins")
        cluster.kill("chief")
        cluster.restart("chief")
        assert cluster.end("chief") == 0
        assert "restored from" in cluster.text("chief")
    assert saved_step(backups) == 40 * NUM_STEPS


def test_training_goes_on_while_a_checkpoint_takes_long_and_the_last_one_is_written(
    run_roles: RoleThreads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_write = threading.Event()
    write = ClusterCheckpoints._write
    written: list[int] = []

    def write_late(self: ClusterCheckpoints, begun: Any) -> None:
        assert may_write.wait(TIMEOUT_S)
        write(self, begun)
        written.append(begun.state.position.epoch)

    monkeypatch.setattr(ClusterCheckpoints, "_write", write_late)

    class Release(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if epoch == 3:  # three epochs have been trained since the first checkpoint was begun
                assert written == []
                may_write.set()

    def train(strategy: Any) -> None:
        with strategy.scope():
            model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        x = np.ones((8, 2), np.float32)
        backup = BackupAndRestore(tmp_path / "backups")
        callbacks = [backup, *([Release()] if strategy.is_chief else [])]
        model.fit(x, x[:, :1], batch_size=4, steps_per_epoch=2, epochs=4, verbose=0, callbacks=callbacks)

    run_roles(train)
    assert written == [0, 4]
    with CheckpointDirectory(tmp_path / "backups") as directory:
        state = directory.restore()
    assert state is not None
    assert (state.position.epoch, state.position.step) == (4, 8)
