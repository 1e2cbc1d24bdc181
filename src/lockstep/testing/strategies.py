"""What every synchronous strategy has to do: subclass `AbstractStrategyConformance` in a test module.

The process needs as many devices as the strategy takes (`lockstep.strategies.simulate_devices`).
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Final, final

import keras
import numpy as np
import pytest

from lockstep.errors import InvalidInputError
from lockstep.strategies import OneDeviceStrategy
from lockstep.strategies.base import AbstractStrategy

RELATIVE_TOLERANCE: Final = 1e-5
BATCH_SIZE: Final = 26
NUM_ROWS: Final = 67  # two batches and one of 15 rows: each divides over some numbers of devices and not over others
NUM_EVALUATED: Final = 66  # in one batch
NUM_EPOCHS: Final = 7  # 21 steps
NUM_CLASSES: Final = 5


@final
@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a training run gave.

    Attributes:
        losses: the running loss after each step, float, shape (steps,).
        weights: the model's floating-point variables afterwards.
        evaluation: loss and metrics over the first rows.
        predictions: float, shape (rows, classes).
    """

    losses: np.ndarray
    weights: list[np.ndarray]
    evaluation: np.ndarray
    predictions: np.ndarray


def make_model() -> Any:
    """Builds and compiles a small model with batch statistics, max pooling and dropout, within the current scope."""
    model = keras.Sequential(
        [
            keras.Input((10, 10, 1)),
            # Without a bias: batch normalisation takes it out again, and Adam would walk along its rounding errors.
            keras.layers.Conv2D(4, 3, use_bias=False),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(NUM_CLASSES),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
    return model


def make_rows() -> tuple[np.ndarray, np.ndarray]:
    """Returns inputs, float32 of shape (rows, 10, 10, 1), and labels, int64 of shape (rows,), always the same."""
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(NUM_ROWS, 10, 10, 1)).astype(np.float32)
    return inputs, generator.integers(0, NUM_CLASSES, NUM_ROWS)


def train(strategy: AbstractStrategy) -> Outcome:
    """Trains the model from one seed under a strategy, calling ``fit`` outside its scope.

    Args:
        strategy: the strategy.
    """
    keras.utils.set_random_seed(3)
    inputs, labels = make_rows()
    with strategy.scope():
        model = make_model()
    losses: list[float] = []
    note = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: losses.append(logs["loss"]))
    model.fit(inputs, labels, batch_size=BATCH_SIZE, epochs=NUM_EPOCHS, verbose=0, callbacks=[note])
    evaluated, expected = inputs[:NUM_EVALUATED], labels[:NUM_EVALUATED]
    evaluation: Any = model.evaluate(evaluated, expected, batch_size=NUM_EVALUATED, verbose=0)
    return Outcome(
        losses=np.array(losses),
        weights=[array for array in map(np.asarray, model.variables) if array.dtype.kind == "f"],
        evaluation=np.array(evaluation),
        predictions=np.asarray(model.predict(evaluated, batch_size=NUM_EVALUATED, verbose=0)),
    )


@functools.cache
def on_one_device() -> Outcome:
    """Trains the model on one device, once in a process."""
    return train(OneDeviceStrategy())


class AbstractStrategyConformance(ABC):
    """The tests; a subclass whose name starts with "Test" says how to make the strategy."""

    num_replicas: int

    @abstractmethod
    def make_strategy(self) -> AbstractStrategy:
        """Makes the strategy over `num_replicas` devices."""

    def test_the_numbers_of_one_device(self) -> None:
        """Loss curve, parameters, evaluation and predictions are those of one device, uneven batches included."""
        outcome, one_device = train(self.make_strategy()), on_one_device()
        assert len(one_device.losses) == 21
        np.testing.assert_allclose(outcome.losses, one_device.losses, rtol=RELATIVE_TOLERANCE)
        for weight, expected in zip(outcome.weights, one_device.weights, strict=True):
            scale = float(np.abs(expected).max())
            np.testing.assert_allclose(weight, expected, rtol=RELATIVE_TOLERANCE, atol=RELATIVE_TOLERANCE * scale)
        np.testing.assert_allclose(outcome.evaluation, one_device.evaluation, rtol=RELATIVE_TOLERANCE)
        np.testing.assert_allclose(outcome.predictions, one_device.predictions, rtol=1e-4, atol=1e-5)

    def test_variables_lie_on_every_device(self) -> None:
        """Each replica holds a copy of each variable, the optimizer's included."""
        strategy = self.make_strategy()
        with strategy.scope():
            model = make_model()
            model.optimizer.build(model.trainable_variables)
        assert strategy.num_replicas_in_sync == self.num_replicas == len(strategy.devices)
        for variable in [*model.variables, *model.optimizer.variables]:
            assert variable.value.sharding.device_set == set(strategy.devices)
            assert variable.value.sharding.is_fully_replicated

    def test_single_batches(self) -> None:
        """``train_on_batch`` and its kin take a batch of any size."""
        inputs, labels = make_rows()
        with self.make_strategy().scope():
            model = make_model()
        loss = float(model.train_on_batch(inputs[:7], labels[:7], return_dict=True)["loss"])
        assert np.isfinite(loss)
        assert np.isfinite(float(model.test_on_batch(inputs[:5], labels[:5], return_dict=True)["loss"]))
        assert model.predict_on_batch(inputs[:3]).shape == (3, NUM_CLASSES)

    def test_one_scope_at_a_time(self) -> None:
        """A scope within another strategy's is refused, within its own it is not."""
        strategy, other = self.make_strategy(), self.make_strategy()
        with strategy.scope() as entered, strategy.scope():
            assert entered is strategy
            with pytest.raises(InvalidInputError, match="within another one's"), other.scope():
                pytest.fail("the scope was entered")
        with other.scope():
            pass

    def test_a_model_keeps_its_strategy(self) -> None:
        """A model compiled under one strategy is not run under another."""
        inputs, labels = make_rows()
        with self.make_strategy().scope():
            model = make_model()
        with self.make_strategy().scope(), pytest.raises(InvalidInputError, match="compiled under another strategy"):
            model.evaluate(inputs, labels, verbose=0)

    def test_it_says_what_it_is(self) -> None:
        """The description is one line that names the class."""
        strategy = self.make_strategy()
        assert type(strategy).__name__ in strategy.describe()
        assert "\n" not in strategy.describe()
        assert strategy.is_chief
        assert strategy.cluster_resolver is None
