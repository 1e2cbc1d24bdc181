"""Trains for some epochs under a strategy, going on from backups, and writes what the model began and ended with.

``moving_on.py STRATEGY BACKUPS EPOCHS RESULT``, where the strategy is "parameter_server" or one of `from_env`'s.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.parameter_server import Embedding, FixedShardsPartitioner, ParameterServerStrategy, row_optimizer
from lockstep.strategies import from_env
from lockstep.training import BackupAndRestore

# isort: split
import keras

NUM_ROWS, BATCH_SIZE = 60, 10


def make_model() -> Any:
    ids = keras.Input((2,), dtype="int32")
    table = Embedding(20, 4, optimizer=row_optimizer("adam", learning_rate=0.01), name="table")
    values = keras.layers.Flatten()(table(ids))
    values = keras.layers.BatchNormalization()(keras.layers.Dense(6)(values))
    model = keras.Model(ids, keras.layers.Dense(1)(values))
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


class Note(keras.callbacks.Callback):
    """Notes what the model has when an epoch begins: with the first one, what it goes on from."""

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[str, Any] = {}

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if not self.first:
            self.first = {"epoch": epoch, **content(self.model)}


def content(model: Any) -> dict[str, Any]:
    """Returns a model's variables, and a table's rows as it gives them out, wherever they are."""
    model.jax_state_sync()
    dense = [variable for variable in model.variables if "table" not in variable.path and "seed" not in variable.path]
    table = next(layer for layer in model.layers if isinstance(layer, Embedding))
    rows = np.asarray(table(np.arange(20)[None]))
    return {"rows": rows, **{f"v{number}": np.array(variable) for number, variable in enumerate(dense)}}


def main(name: str, backups: str, num_epochs: int, result: str) -> None:
    if name == "parameter_server":
        strategy: Any = ParameterServerStrategy(None, FixedShardsPartitioner(2))
    else:
        strategy = from_env(name)
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = make_model()
    random = np.random.default_rng(0)
    ids, targets = random.integers(0, 20, (NUM_ROWS, 2)).astype(np.int32), random.normal(size=(NUM_ROWS, 1))
    note = Note()
    model.fit(
        ids,
        targets.astype(np.float32),
        batch_size=BATCH_SIZE,
        steps_per_epoch=NUM_ROWS // BATCH_SIZE,
        epochs=num_epochs,
        callbacks=[BackupAndRestore(backups), note],
        verbose=0,
    )
    with strategy.scope():
        last = content(model)
    if strategy.is_chief:
        found: dict[str, Any] = {f"first.{key}": value for key, value in note.first.items()}
        np.savez(result, **found, **{f"last.{key}": value for key, value in last.items()})
    print("trained to the end", Path(result).name, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
