"""A run that `test_killed_runs` kills again and again: all that decides its next step changes from step to step.

``killed_run.py CHECKPOINTS RESULT KILL_STEP PRECISION``; without a kill step (0) it runs to its end, and the chief
writes what came out. `STRATEGY` names the strategy, and `KILL_RANK` the process that is killed.
"""

import logging
import os
import signal
import sys

import numpy as np

from lockstep.data import Batches
from lockstep.parameter_server import LocalProcesses, ParameterServerStrategy
from lockstep.strategies import MirroredStrategy, MultiWorkerMirroredStrategy, OneDeviceStrategy, ShardedStrategy
from lockstep.strategies.gathering import whole_value
from lockstep.training import BackupAndRestore

# isort: split
import keras

NUM_RECORDS, BATCH_SIZE, NUM_COLUMNS = 60, 8, 6
NUM_STEPS = 8  # of an epoch; its last batch has four records
NUM_EPOCHS = 9
NUM_TRAINED = 5
"""The epochs until `EarlyStopping` ends the run: its best is the first one."""
STRATEGIES = {
    "one_device": OneDeviceStrategy,
    "mirrored": MirroredStrategy,
    "multi_worker": MultiWorkerMirroredStrategy,
    "sharded": lambda: ShardedStrategy(stage=3, min_shard_elements=1),
    "parameter_server": lambda: ParameterServerStrategy(
        LocalProcesses(num_workers=1, num_servers=2), num_backup_workers=0
    ),
}


class Numbers:
    def __len__(self):
        return NUM_RECORDS

    def __getitem__(self, index):
        return bytes([index])


class Warmth(keras.callbacks.Callback):
    """Follows the loss, and makes the learning rate depend on it: a callback with a state of its own."""

    def __init__(self):
        super().__init__()
        self.averages = np.zeros(2)
        self.num_seen = 0

    def on_train_batch_end(self, batch, logs=None):
        self.averages = self.averages * [0.9, 0.5] + logs["loss"] * np.array([0.1, 0.5])
        self.num_seen += 1

    def on_epoch_end(self, epoch, logs=None):
        rate = float(np.asarray(self.model.optimizer.learning_rate))
        self.model.optimizer.learning_rate = rate * (1 + 0.01 * float(self.averages.mean()))

    def get_state(self):
        return {"averages": self.averages, "num_seen": self.num_seen}

    def set_state(self, state):
        self.averages, self.num_seen = state["averages"], state["num_seen"]


class Last(keras.callbacks.Callback):
    """Keeps what was trained last, before `EarlyStopping` puts back the best weights."""

    def on_train_end(self, logs=None):
        self.model.jax_state_sync()
        variables = [*self.model.trainable_variables, *self.model.non_trainable_variables]
        self.values = [whole_value(variable.value) for variable in [*variables, *self.model.optimizer.variables]]


class Death(keras.callbacks.Callback):
    def __init__(self, step):
        super().__init__()
        self.step = step

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if self.epoch * NUM_STEPS + batch + 1 == self.step:
            os.kill(os.getpid(), signal.SIGKILL)

    def get_state(self):
        return {}

    def set_state(self, state):
        pass


def make_model(precision, *, draws):
    keras.utils.set_random_seed(5)
    layers = [keras.layers.Dense(12, activation="relu", dtype=precision), keras.layers.BatchNormalization()]
    layers += [keras.layers.Dropout(0.25)] if draws else []
    model = keras.Sequential([keras.Input((NUM_COLUMNS,)), *layers, keras.layers.Dense(2)])
    optimizer = keras.optimizers.Adam(0.01)
    if precision == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=2.0**16, dynamic_growth_steps=5)
    model.compile(optimizer, "mse", metrics=["mae"])
    return model


def values_of(numbers):
    return np.sin(np.asarray(numbers, np.float32)[:, None] * np.arange(1, NUM_COLUMNS + 1)).astype(np.float32)


def make_batches(strategy):
    def transform(records, random):
        values = values_of([record[0] for record in records])
        noise = 0.1 * random.uniform(NUM_COLUMNS).astype(np.float32)
        return values + noise, values[:, :2] * 2

    context = strategy.input_context
    return Batches(Numbers(), batch_size=BATCH_SIZE, random_transform=transform, seed=3, input_context=context)


def main(directory, result, kill_step, precision):
    logging.basicConfig(force=True)  # importing Keras has set up a handler
    name = os.environ["STRATEGY"]
    strategy = STRATEGIES[name]()
    is_served = name == "parameter_server"  # its workers draw and read for themselves, and begin that anew
    with strategy.scope():
        model = make_model(precision, draws=not is_served)
    is_killed = strategy.input_context.input_pipeline_id == int(os.environ.get("KILL_RANK", "0"))
    last = Last()
    callbacks = [
        BackupAndRestore(directory, save_freq="epoch" if is_served else 3, keep_best=1, monitor="loss", mode="max"),
        Warmth(),
        last,
        keras.callbacks.ReduceLROnPlateau("loss", mode="max", patience=2, cooldown=1),
        keras.callbacks.EarlyStopping(
            "loss", mode="max", patience=NUM_TRAINED - 1, restore_best_weights=name != "sharded"
        ),
        Death(int(kill_step) if is_killed else 0),
    ]
    options = {"epochs": NUM_EPOCHS, "verbose": 0, "callbacks": callbacks}
    if is_served:
        rows = values_of(range(BATCH_SIZE))  # every step has the same rows, whoever reads them
        history = model.fit(rows, rows[:, :2] * 2, batch_size=BATCH_SIZE, steps_per_epoch=NUM_STEPS, **options)
    else:
        history = model.fit(make_batches(strategy), **options)
    found = {f"last_{number}": value for number, value in enumerate(last.values)}
    found |= {f"best_{number}": whole_value(variable.value) for number, variable in enumerate(model.weights)}
    best = callbacks[0].restore_best(model)
    found |= {f"restored_{number}": whole_value(variable.value) for number, variable in enumerate(model.weights)}
    if strategy.is_chief:
        np.savez(result, epochs=history.epoch, best_epoch=best.epoch, best_loss=best.metrics["loss"], **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
