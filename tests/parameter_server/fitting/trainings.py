"""What tests of ``fit`` train, here and over workers and servers."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from tests.waiting import wait_until

from lockstep.parameter_server import ParameterServerStrategy
from lockstep.strategies import OneDeviceStrategy

NUM_ROWS, BATCH_SIZE = 150, 16


STEPS = -(-NUM_ROWS // BATCH_SIZE)


class Total(keras.metrics.Metric):
    """Adds the first column of the targets up: each row is known by it."""

    def __init__(self, name: str = "rows") -> None:
        super().__init__(name=name)
        self.total = self.add_variable((), "zeros", name="total")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.total.assign_add(keras.ops.sum(keras.ops.cast(y_true, "float32")))

    def result(self) -> Any:
        return self.total.value


def make_rows() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    inputs = np.random.default_rng(0).normal(size=(NUM_ROWS, 4)).astype(np.float32)
    return inputs, np.arange(NUM_ROWS, dtype=np.float32)[:, None] / NUM_ROWS


def make_model(*, metrics: Any = ("mae",), optimizer: Any = None) -> Any:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(1)])
    random = np.random.default_rng(2)  # Keras's own numbers are all threads'
    model.set_weights([0.5 * random.normal(size=value.shape) for value in model.get_weights()])
    model.compile(optimizer or keras.optimizers.Adam(0.01), "mse", metrics=list(metrics))
    return model


def train_here(**options: Any) -> tuple[dict[str, list[float]], list[np.ndarray[Any, Any]]]:
    keras.backend.clear_session()
    with OneDeviceStrategy().scope():
        model = make_model()
    history = model.fit(*make_rows(), batch_size=BATCH_SIZE, epochs=3, shuffle=False, verbose=0, **options)
    return history.history, model.get_weights()


def fit(strategy: ParameterServerStrategy, **options: Any) -> tuple[dict[str, list[float]], Any]:
    with strategy.scope():
        model = make_model()
    defaults = {"batch_size": BATCH_SIZE, "epochs": 3, "shuffle": False, "steps_per_epoch": STEPS, "verbose": 0}
    history = model.fit(*make_rows(), **{**defaults, **options})
    return history.history, model


class AllThere(keras.callbacks.Callback):
    """Has training begin once all workers are there; gives the coordinator's dispatcher to `told`."""

    def __init__(self, strategy: ParameterServerStrategy, *, told: list[Any], num_workers: int = 2) -> None:
        super().__init__()
        self._strategy = strategy
        self._told = told
        self._num_workers = num_workers

    def on_train_begin(self, logs: Any = None) -> None:
        chief = self._strategy.member.chief
        assert chief is not None
        dispatcher = chief.dispatcher
        self._told.append(dispatcher)
        wait_until(lambda: len(dispatcher.workers) == self._num_workers)


class HasHeard(keras.callbacks.Callback):
    """Has the second epoch begin once the coordinator has said who cannot take part."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        super().__init__()
        self.caplog = caplog

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        wait_until(lambda: "worker 1 cannot take part: worker 1 has another model" in self.caplog.text)
