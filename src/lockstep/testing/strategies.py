"""Checks of the behaviour of synchronous strategies. `lockstep.testing.exactness` checks their numbers.

A `Setup` says how to create a strategy, and each of the `BEHAVIOURS` checks one setup. The process needs as many
devices as the setup takes (`lockstep.strategies.simulate_devices`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, final

import keras
import numpy as np
import pytest

from lockstep.errors import InvalidInputError
from lockstep.strategies.base import AbstractStrategy
from lockstep.strategies.current import get_replica_context, get_strategy, in_cross_replica_context
from lockstep.strategies.loops.lifting import function

NUMS_REPLICAS: Final = (1, 2, 3, 4, 8)
NUM_ROWS: Final = 67
NUM_CLASSES: Final = 5


@final
@dataclass(frozen=True)
class Setup:
    """A strategy to check, with some numbers of replicas.

    Attributes:
        name: the name of the setup in the names of tests.
        make: a function that creates the strategy for a number of replicas.
        replicas: the numbers of replicas to check, in ascending order.
        takes_all_devices: whether the strategy uses all devices of the process, so that each number of replicas needs a
            process of its own.
        num_devices: the number of devices of one replica.
    """

    name: str
    make: Callable[[int], AbstractStrategy]
    replicas: tuple[int, ...] = NUMS_REPLICAS
    takes_all_devices: bool = False
    num_devices: int = 1

    @property
    def most_replicas(self) -> int:
        """The largest number of replicas to check."""
        return self.replicas[-1]


def make_model() -> Any:
    """Builds and compiles a small model with batch statistics, max pooling and dropout, within the current scope."""
    model = keras.Sequential(
        [
            keras.Input((10, 10, 1)),
            # Without a bias, because batch normalisation cancels it, and Adam would then follow rounding errors.
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
    """Returns the same inputs, float32 of shape (rows, 10, 10, 1), and labels, int64 of shape (rows,), in each call."""
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(NUM_ROWS, 10, 10, 1)).astype(np.float32)
    return inputs, generator.integers(0, NUM_CLASSES, NUM_ROWS)


def _make(setup: Setup) -> AbstractStrategy:
    return setup.make(setup.most_replicas)


def keeps_state_where_its_layout_says(setup: Setup) -> None:
    """Checks that all variables, including the optimizer's, are on the state's devices, also after a training."""
    strategy = _make(setup)
    with strategy.scope():
        model = make_model()
        model.optimizer.build(model.trainable_variables)
    assert strategy.num_replicas_in_sync == setup.most_replicas
    assert len(strategy.devices) == setup.most_replicas * setup.num_devices
    inputs, labels = make_rows()
    for _ in range(2):
        for variable in [*model.variables, *model.optimizer.variables]:
            assert variable.value.sharding.device_set == set(strategy.layout.state_devices), variable.path
        model.fit(inputs, labels, batch_size=26, verbose=0)


def takes_single_batches(setup: Setup) -> None:
    """Checks that ``train_on_batch``, ``test_on_batch`` and ``predict_on_batch`` take batches of any size."""
    inputs, labels = make_rows()
    with _make(setup).scope():
        model = make_model()
    assert np.isfinite(float(model.train_on_batch(inputs[:7], labels[:7], return_dict=True)["loss"]))
    assert np.isfinite(float(model.test_on_batch(inputs[:5], labels[:5], return_dict=True)["loss"]))
    assert np.asarray(model.predict_on_batch(inputs[:3])).shape == (3, NUM_CLASSES)


def rejects_nested_scopes(setup: Setup) -> None:
    """Checks that a scope cannot be entered within another strategy's, but within the strategy's own."""
    strategy, other = _make(setup), _make(setup)
    with strategy.scope() as entered, strategy.scope():
        assert entered is strategy
        assert get_strategy() is strategy
        assert in_cross_replica_context()
        with pytest.raises(InvalidInputError, match="within another one's"), other.scope():
            pytest.fail("the scope was entered")
    with other.scope():
        pass


def keeps_its_models(setup: Setup) -> None:
    """Checks that a model that was compiled under one strategy is not run under another."""
    inputs, labels = make_rows()
    with _make(setup).scope():
        model = make_model()
    with _make(setup).scope(), pytest.raises(InvalidInputError, match="compiled under another strategy"):
        model.evaluate(inputs, labels, verbose=0)


def describes_itself(setup: Setup) -> None:
    """Checks that the description is one line that names the class."""
    strategy = _make(setup)
    assert type(strategy).__name__ in strategy.describe()
    assert "\n" not in strategy.describe()
    assert strategy.is_chief


def runs_a_step_on_each_replica(setup: Setup) -> None:
    """Checks replicas' numbers, the order of their rows, and sums over them, within a lifted function and outside."""
    strategy, number = _make(setup), setup.most_replicas
    rows = np.arange(2.0 * number, dtype=np.float32)

    def step(share: Any) -> Any:
        context = get_replica_context()
        assert context is not None
        total = context.all_reduce("SUM", share.sum())
        return context.replica_id_in_sync_group, share, total

    (batch,) = strategy.experimental_distribute_dataset([rows])
    for run in (strategy.run, function(lambda *arguments, **named: strategy.run(*arguments, **named))):
        replicas, shares, totals = run(step, args=(batch,))
        assert [int(value) for value in strategy.experimental_local_results(replicas)] == list(range(number))
        np.testing.assert_array_equal(strategy.gather(shares, axis=0), rows)
        assert float(strategy.reduce("MEAN", totals)) == rows.sum() == float(strategy.reduce("SUM", shares, axis=0))


def compiles_pure_steps(setup: Setup) -> None:
    """Checks that a pure step computes what NumPy computes, on batches of any size, and keeps its state in place."""
    strategy = _make(setup)
    weights = np.arange(16.0, dtype=np.float32).reshape(8, 2)
    state = strategy.replicate({"weights": weights})
    assert state["weights"].sharding.device_set == set(strategy.layout.state_devices)

    def gradients_of(state: Any, batch: Any) -> Any:
        outputs = batch @ state["weights"]
        return batch.T @ outputs, outputs.sum()

    step = strategy.compile(gradients_of, update=lambda state, found: {"weights": state["weights"] - 0.01 * found})
    for num_rows in (8, 5, 1):
        batch = np.linspace(0, 1, 8 * num_rows, dtype=np.float32).reshape(num_rows, 8)
        state, total = step(state, strategy.shard_batch(batch))
        np.testing.assert_allclose(float(total), (batch @ weights).sum(), rtol=1e-5)
        weights = weights - 0.01 * batch.T @ (batch @ weights)
    np.testing.assert_allclose(np.asarray(state["weights"]), weights, rtol=1e-5)
    assert state["weights"].sharding.device_set == set(strategy.layout.state_devices)


BEHAVIOURS: Final[tuple[Callable[[Setup], None], ...]] = (
    keeps_state_where_its_layout_says,
    takes_single_batches,
    rejects_nested_scopes,
    keeps_its_models,
    describes_itself,
    runs_a_step_on_each_replica,
    compiles_pure_steps,
)
