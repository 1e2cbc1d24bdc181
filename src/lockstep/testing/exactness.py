"""Checks whether a strategy computes the numbers of one device, for different nets, optimizers and ways to train.

A `Cell` is one combination. `check` trains it under its strategy and on one device, from the same seed and over the
same global batches, and compares all results. The batches of a cell are even, uneven, smaller than the number of
replicas, or a single row, which leaves all replicas except one without rows.

The process needs as many devices as the largest setup takes (`lockstep.strategies.simulate_devices`).
"""

from __future__ import annotations

import functools
import itertools
import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeAlias, cast, final

import jax
import jax.numpy as jnp
import keras
import numpy as np
from allpairspy import AllPairs

from lockstep.strategies import OneDeviceStrategy
from lockstep.strategies.base import AbstractStrategy
from lockstep.strategies.loops.gradients import compute_average_loss, value_and_grad
from lockstep.strategies.loops.lifting import function
from lockstep.testing.strategies import Setup

Way: TypeAlias = Literal["fit", "run", "pure"]
"""How a model is trained: Keras's ``fit``, a custom loop with ``strategy.run``, or a pure step in JAX."""

BATCH_ROWS: Final = (24, 24, 24, 22, 1)
"""The numbers of rows of an epoch's batches. For every number of replicas, some divide evenly and some do not."""

NUM_EPOCHS: Final = 4  # 20 steps
NUM_CLASSES: Final = 3
MAX_DIFFERENCE: Final = {"float32": 1e-5, "float64": 1e-12}
"""The maximum of ||a - b|| / ||b|| for each tensor, by dtype."""

NETS: Final = ("dense", "convolutional", "recurrent", "embedding")
OPTIMIZERS: Final = ("sgd", "adam", "adamw")
DTYPES: Final = ("float32", "float64")
WAYS: Final[tuple[Way, ...]] = ("fit", "run", "pure")


@final
@dataclass(frozen=True)
class Cell:
    """One combination to check."""

    setup: Setup
    num_replicas: int
    net: str
    dtype: str
    optimizer: str
    way: Way

    @property
    def fits_here(self) -> bool:
        """Whether this process has the devices that the cell needs."""
        needed, there = self.num_replicas * self.setup.num_devices, jax.local_device_count()
        return needed == there if self.setup.takes_all_devices else needed <= there

    def __str__(self) -> str:
        return f"{self.setup.name}_{self.num_replicas}-{self.net}-{self.dtype}-{self.optimizer}-{self.way}"


@final
@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The results of a training run.

    Attributes:
        losses: the loss of each step, of shape (steps,).
        accuracy: the accuracy over the last epoch.
        weights: the model's floating-point variables after the training, by path.
        predictions: the predictions for all rows in order, of shape (rows, classes).
    """

    losses: np.ndarray
    accuracy: float
    weights: dict[str, np.ndarray]
    predictions: np.ndarray

    def save(self, path: Path) -> None:
        """Writes the results to a NumPy file (``.npz``). The file appears whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".npz", delete=False) as file:
            weights = {_WEIGHT + name: array for name, array in self.weights.items()}
            np.savez(
                file,
                allow_pickle=False,
                losses=self.losses,
                accuracy=self.accuracy,
                predictions=self.predictions,
                **weights,
            )
        Path(file.name).replace(path)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads results that `save` wrote."""
        with np.load(path, allow_pickle=False) as arrays:
            weights = {name.removeprefix(_WEIGHT): arrays[name] for name in arrays if name.startswith(_WEIGHT)}
            return cls(
                losses=arrays["losses"],
                accuracy=float(arrays["accuracy"]),
                weights=weights,
                predictions=arrays["predictions"],
            )


_WEIGHT: Final = "weights:"


def full_product(setups: Sequence[Setup]) -> list[Cell]:
    """Returns every cell with ``fit`` and with a custom loop, and the cells with pure steps from `pairwise`.

    A pure step is compiled as one global program, like ``fit``, so its own code does not need all combinations.

    Args:
        setups: the strategies.
    """
    dimensions = itertools.product(_places(setups), NETS, DTYPES, OPTIMIZERS, ("fit", "run"))
    cells = [_cell(row) for row in dimensions if _exists(row)]
    return cells + [cell for cell in pairwise(setups) if cell.way == "pure"]


def pairwise(setups: Sequence[Setup]) -> list[Cell]:
    """Returns cells in which any two values of different dimensions meet. A strategy with n replicas is one value.

    Args:
        setups: the strategies.
    """
    dimensions: list[list[Any]] = [_places(setups), list(NETS), list(DTYPES), list(OPTIMIZERS), list(WAYS)]
    return [_cell(row) for row in AllPairs(dimensions, filter_func=_exists)]


def _places(setups: Sequence[Setup]) -> list[tuple[Setup, int]]:
    return [(setup, num_replicas) for setup in setups for num_replicas in setup.replicas]


def _cell(row: Sequence[Any]) -> Cell:
    (setup, num_replicas), net, dtype, optimizer, way = row
    return Cell(setup, num_replicas, net, dtype, optimizer, way)


def _exists(row: Sequence[Any]) -> bool:
    """Whether a row of the product, or its beginning, is a cell.

    Convolutional nets in float64 are not, because Keras computes batch statistics in float32.
    """
    return len(row) < 3 or (row[1], row[2]) != ("convolutional", "float64")


def check(cell: Cell, *, references: Path | None = None) -> None:
    """Trains a cell and compares the results with those of one device. An assertion shows the differences.

    Args:
        cell: the combination.
        references: a folder in which the processes of one test run share the results of one device, so that not every
            process needs to compute them. (Within a process, they are computed only once in any case.) The folder must
            not be reused in another test run.
    """
    with _computing_in(cell.dtype):
        expected = _on_one_device(cell.net, cell.optimizer, cell.dtype, cell.way == "fit", references)
        strategy = cell.setup.make(cell.num_replicas)
        assert strategy.num_replicas_in_sync == cell.num_replicas
        found = train(strategy, net=cell.net, optimizer=cell.optimizer, way=cell.way)
    bound = MAX_DIFFERENCE[cell.dtype]
    assert found.weights.keys() == expected.weights.keys()
    differences = {path: _difference(found.weights[path], expected.weights[path]) for path in expected.weights}
    assert max(differences.values()) <= bound, differences
    assert _difference(found.losses, expected.losses) <= bound
    assert _difference(found.predictions, expected.predictions) <= bound
    assert abs(found.accuracy - expected.accuracy) < 1e-6


def _difference(found: np.ndarray, expected: np.ndarray) -> float:
    scale = float(np.linalg.norm(expected))
    return float(np.linalg.norm(found - expected)) / (scale or 1.0)


@contextmanager
def _computing_in(dtype: str) -> Generator[None]:
    floatx, policy = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx(dtype)
    keras.config.set_dtype_policy(dtype)
    try:
        with jax.enable_x64(dtype == "float64"):
            yield
    finally:
        keras.config.set_floatx(floatx)
        keras.config.set_dtype_policy(policy)


@functools.cache
def _on_one_device(
    net: str,
    optimizer: str,
    dtype: str,
    has_dropout: bool,  # noqa: FBT001 - a cache's key
    references: Path | None,
) -> Outcome:
    kept = None if references is None else references / f"{net}-{optimizer}-{dtype}-{has_dropout}.npz"
    if kept is not None and kept.exists():
        return Outcome.load(kept)
    outcome = train(OneDeviceStrategy("cpu:0"), net=net, optimizer=optimizer, way="fit", has_dropout=has_dropout)
    if kept is not None:
        outcome.save(kept)
    return outcome


def train(
    strategy: AbstractStrategy, *, net: str, optimizer: str, way: Way, has_dropout: bool | None = None
) -> Outcome:
    """Trains a net from one seed.

    Args:
        strategy: the strategy.
        net: one of `NETS`.
        optimizer: one of `OPTIMIZERS`.
        way: how to train it.
        has_dropout: whether the net has dropout. By default, only under ``fit``, where a mask is that of one device.
    """
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = make_net(net, has_dropout=way == "fit" if has_dropout is None else has_dropout)
        model.compile(make_optimizer(optimizer), _loss(), metrics=["accuracy"])
    losses, accuracy = _WAYS[way](strategy, model, net)
    inputs = np.concatenate([inputs for inputs, _ in batches_of(net)])
    return Outcome(
        losses=np.array(losses),
        accuracy=accuracy,
        weights={v.path: np.asarray(v.value) for v in model.variables if jnp.issubdtype(v.dtype, jnp.floating)},
        predictions=np.asarray(model.predict(inputs, batch_size=19, verbose=0)),
    )


def make_net(net: str, *, has_dropout: bool) -> Any:
    """Builds one of `NETS`. The names of its layers are the same each time."""
    layers = keras.layers
    body: list[Any]
    match net:
        case "dense":
            body = [keras.Input((6,)), layers.Dense(16, activation="relu", name="hidden")]
        case "convolutional":
            # Without a bias, because batch normalisation cancels it, and only noise is left of its gradient.
            body = [keras.Input((6, 6, 1)), layers.Conv2D(4, 3, use_bias=False, name="filters")]
            # Under `run`, each replica has its own statistics unless the layer is synchronized.
            body += [layers.BatchNormalization(synchronized=True, name="norm"), layers.ReLU()]
            body += [layers.MaxPooling2D(), layers.Flatten()]
        case "recurrent":
            # JAX's tanh, because Keras computes its own tanh of float64 in float32.
            body = [keras.Input((5, 3)), layers.LSTM(8, activation=cast("Any", jnp.tanh), name="memory")]
        case _:
            body = [keras.Input((7,), dtype="int32"), layers.Embedding(12, 8, name="words")]
            body += [layers.GlobalAveragePooling1D()]
    if has_dropout:
        body.append(layers.Dropout(0.3, name="dropout"))
    return keras.Sequential([*body, layers.Dense(NUM_CLASSES, name="classes")], name=net)


def make_optimizer(name: str) -> Any:
    """Makes one of `OPTIMIZERS`."""
    match name:
        case "sgd":
            return keras.optimizers.SGD(0.05, momentum=0.9)
        case "adam":
            return keras.optimizers.Adam(1e-3)
        case _:
            return keras.optimizers.AdamW(1e-3, weight_decay=0.02)


def batches_of(net: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns the batches of an epoch, the same in each call: inputs and labels, with `BATCH_ROWS` rows."""
    generator = np.random.default_rng(0)
    num_rows = sum(BATCH_ROWS)
    labels = generator.integers(0, NUM_CLASSES, num_rows)
    match net:
        case "embedding":
            inputs = generator.integers(0, 12, (num_rows, 7)).astype(np.int32)
        case "dense":
            inputs = generator.normal(size=(num_rows, 6)).astype(keras.config.floatx())
        case "recurrent":
            inputs = generator.normal(size=(num_rows, 5, 3)).astype(keras.config.floatx())
        case _:
            inputs = generator.normal(size=(num_rows, 6, 6, 1)).astype(keras.config.floatx())
    ends = list(itertools.accumulate(BATCH_ROWS))
    return [(inputs[end - rows : end], labels[end - rows : end]) for rows, end in zip(BATCH_ROWS, ends, strict=True)]


def _loss(reduction: str = "sum_over_batch_size") -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)


def _repeat(net: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for _ in range(NUM_EPOCHS):
        yield from batches_of(net)


def _fit(strategy: AbstractStrategy, model: Any, net: str) -> tuple[list[float], float]:
    del strategy  # the model knows it
    losses: list[float] = []

    @final
    class Note(keras.callbacks.Callback):
        """Computes the loss of each step, because Keras reports the mean over the epoch so far."""

        def __init__(self) -> None:
            super().__init__()
            self.seen = 0.0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.seen, self.rows = 0.0, 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            rows = BATCH_ROWS[batch]
            total = float(logs["loss"]) * (self.rows + rows)
            losses.append((total - self.seen) / rows)
            self.seen, self.rows = total, self.rows + rows

    epoch = len(BATCH_ROWS)
    quiet: dict[str, Any] = {"verbose": 0, "callbacks": [Note()]}
    history = model.fit(_repeat(net), steps_per_epoch=epoch, epochs=NUM_EPOCHS, shuffle=False, **quiet)
    return losses, float(history.history["accuracy"][-1])


def _run(strategy: AbstractStrategy, model: Any, net: str) -> tuple[list[float], float]:
    per_example = _loss("none")
    optimizer = model.optimizer
    with strategy.scope():
        accuracy = keras.metrics.SparseCategoricalAccuracy()

    def step(inputs: Any, labels: Any) -> Any:
        def loss() -> Any:
            logits = model(inputs, training=True)
            return compute_average_loss(per_example(labels, logits)), logits

        (value, logits), gradients = value_and_grad(loss, model.trainable_variables, has_aux=True)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        accuracy.update_state(labels, logits)
        return value

    @function
    def train_step(batch: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(step, args=batch))

    losses: list[float] = []
    for position, batch in enumerate(strategy.experimental_distribute_dataset(_repeat(net))):
        if position % len(BATCH_ROWS) == 0:
            accuracy.reset_state()
        losses.append(float(train_step(batch)))
    return losses, float(np.asarray(accuracy.result()))


def _pure(strategy: AbstractStrategy, model: Any, net: str) -> tuple[list[float], float]:
    per_example = _loss("none")
    optimizer = model.optimizer
    with strategy.scope():
        optimizer.build(model.trainable_variables)

    def gradients_of(state: Any, batch: Any) -> Any:
        inputs, labels = batch

        def loss(trainable: Any) -> Any:
            logits, others = model.stateless_call(trainable, state["others"], inputs, training=True)
            right = jnp.sum(jnp.argmax(logits, axis=-1) == labels)
            return jnp.mean(per_example(labels, logits)), (others, right)

        (value, (others, right)), gradients = jax.value_and_grad(loss, has_aux=True)(state["trainable"])
        return {"trainable": gradients, "others": others}, (value, right)

    def update(state: Any, found: Any) -> Any:
        trainable, own = optimizer.stateless_apply(state["optimizer"], found["trainable"], state["trainable"])
        return {"trainable": trainable, "others": found["others"], "optimizer": own}

    variables = {
        "trainable": model.trainable_variables,
        "others": model.non_trainable_variables,
        "optimizer": optimizer.variables,
    }
    state = strategy.replicate(jax.tree.map(lambda variable: np.asarray(variable.value), variables))
    step = strategy.compile(gradients_of, update=update)
    losses, right = [], []
    for batch in _repeat(net):
        state, (value, num_right) = step(state, strategy.shard_batch(batch))
        losses.append(float(value))
        right.append(int(num_right))
    for group, members in variables.items():
        for variable, value in zip(members, state[group], strict=True):
            variable.assign(np.asarray(value))
    return losses, sum(right[-len(BATCH_ROWS) :]) / sum(BATCH_ROWS)


_WAYS: Final = {"fit": _fit, "run": _run, "pure": _pure}
