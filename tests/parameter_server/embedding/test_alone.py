"""A model of embeddings alone, as matrix factorisation is: its servers have rows, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from tests.parameter_server.role_threads import RoleThreads

from lockstep.checkpoints import CheckpointDirectory
from lockstep.parameter_server import Embedding, ParameterServerStrategy
from lockstep.strategies import OneDeviceStrategy
from lockstep.training import BackupAndRestore

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")

NUM_USERS, NUM_ITEMS = 40, 30
STEPS = 6
BATCH_SIZE = 16
OPTIONS = {"batch_size": BATCH_SIZE, "shuffle": False, "verbose": 0}


def make_ratings() -> tuple[list[np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
    random = np.random.default_rng(0)
    users, items = (
        random.integers(0, most, size=STEPS * BATCH_SIZE).astype(np.int32) for most in (NUM_USERS, NUM_ITEMS)
    )
    return [users, items], ((users + items) % 3).astype(np.float32)


def make_model(optimizer: Any) -> Any:
    user, item = (keras.Input((), dtype="int32", name=name) for name in ("user", "item"))
    users, items = Embedding(NUM_USERS, 4, seed=1, name="users"), Embedding(NUM_ITEMS, 4, seed=2, name="items")
    model = keras.Model([user, item], keras.layers.Dot(-1)([users(user), items(item)]))
    model.compile(optimizer, "mse")
    return model


def predictions(model: Any) -> np.ndarray[Any, Any]:
    grid = np.meshgrid(np.arange(NUM_USERS, dtype=np.int32), np.arange(NUM_ITEMS, dtype=np.int32))
    return model.predict([one.reshape(-1) for one in grid], verbose=0)


def train(run_roles: RoleThreads, optimizer: Any, *, num_servers: int, epochs: int, backups: Path | None = None) -> Any:
    """Returns what the model predicts, and its loss, after synchronous steps of one worker."""
    inputs, ratings = make_ratings()

    def script(strategy: ParameterServerStrategy) -> Any:
        with strategy.scope():
            model = make_model(optimizer())
        callbacks = [] if backups is None else [BackupAndRestore(backups)]
        model.fit(inputs, ratings, steps_per_epoch=STEPS, epochs=epochs, callbacks=callbacks, **OPTIONS)
        return predictions(model), model.evaluate(inputs, ratings, batch_size=BATCH_SIZE, verbose=0)

    return run_roles(script, num_servers=num_servers, num_backup_workers=0)


@pytest.mark.parametrize("num_servers", [pytest.param(1, marks=pytest.mark.heavy), 2])
def test_rows_on_servers_without_a_variable_are_those_of_one_device(run_roles: RoleThreads, num_servers: int) -> None:
    found, loss = train(run_roles, lambda: keras.optimizers.SGD(0.5), num_servers=num_servers, epochs=2)
    inputs, ratings = make_ratings()
    keras.backend.clear_session()
    with OneDeviceStrategy().scope():
        model = make_model(keras.optimizers.SGD(0.5))
    model.fit(inputs, ratings, epochs=2, **OPTIONS)
    np.testing.assert_allclose(found, predictions(model), rtol=1e-5, atol=1e-6)
    assert loss == pytest.approx(model.evaluate(inputs, ratings, verbose=0), rel=1e-5)


@pytest.mark.heavy
def test_a_checkpoint_has_the_rows_and_the_step(run_roles: RoleThreads, tmp_path: Path) -> None:
    expected, _ = train(run_roles, lambda: "adagrad", num_servers=1, epochs=3)
    for epochs, num_servers in ((1, 2), (3, 1)):
        found, _ = train(run_roles, lambda: "adagrad", num_servers=num_servers, epochs=epochs, backups=tmp_path)
        with CheckpointDirectory(tmp_path) as directory:
            state = directory.restore()
        assert state is not None
        assert (state.position.epoch, state.position.step) == (epochs, epochs * STEPS)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    keras.backend.clear_session()
    whole = make_model("adagrad")
    state.apply(whole)
    np.testing.assert_allclose(predictions(whole), found, rtol=1e-5, atol=1e-6)
