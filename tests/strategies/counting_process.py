"""Counts the calls of Python's and C's functions in a step of ``fit`` and of loops: plain Keras first, then strategies.

Prints a JSON object with a number for each. Only the calls of the main thread are counted, so the numbers do not depend
on the machine.
"""

import json
import sys
from collections.abc import Callable, Iterator

import numpy as np

import lockstep
from lockstep.strategies import MirroredStrategy, OneDeviceStrategy, simulate_devices

simulate_devices(2)

import jax  # noqa: E402 - once the devices are simulated
import keras  # noqa: E402 - once Lockstep has chosen the backend

ROWS = np.zeros((8 * 40, 8), np.float32)
LABELS = np.zeros(8 * 40, np.int32)


def made() -> keras.Model:
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8), keras.layers.Dense(4)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model


def num_calls(train: Callable[[int], object], *, num_steps: int) -> int:
    seen = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal seen
        del frame, argument
        seen += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        train(num_steps)
    finally:
        sys.setprofile(None)
    return seen


def calls_a_step(train: Callable[[int], object]) -> float:
    for num_steps in (10, 40):  # what is done once is done
        num_calls(train, num_steps=num_steps)
    return (num_calls(train, num_steps=40) - num_calls(train, num_steps=10)) / 30


def fitting(model: keras.Model) -> Callable[[int], object]:
    def train(num_steps: int) -> None:
        model.fit(ROWS[: 8 * num_steps], LABELS[: 8 * num_steps], batch_size=8, verbose=0, shuffle=False)

    return train


def batches(num_steps: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for start in range(0, 8 * num_steps, 8):
        yield ROWS[start : start + 8], LABELS[start : start + 8]


def looping(strategy: OneDeviceStrategy, model: keras.Model) -> Callable[[int], object]:
    per_row = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def replica_step(inputs: jax.Array, labels: jax.Array) -> jax.Array:
        variables = model.trainable_variables
        loss, gradients = lockstep.value_and_grad(
            lambda: lockstep.compute_average_loss(per_row(labels, model(inputs, training=True))), variables
        )
        model.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    step = lockstep.function(lambda batch: strategy.reduce("SUM", strategy.run(replica_step, args=batch)))

    def train(num_steps: int) -> None:
        for batch in strategy.experimental_distribute_dataset(list(batches(num_steps))):
            step(batch)

    return train


def stepping(strategy: OneDeviceStrategy, model: keras.Model) -> Callable[[int], object]:
    optimizer = model.optimizer
    optimizer.build(model.trainable_variables)
    groups = model.trainable_variables, optimizer.variables
    state = strategy.replicate(tuple([variable.numpy() for variable in group] for group in groups))

    def loss_of(trained: list[jax.Array], inputs: jax.Array, labels: jax.Array) -> jax.Array:
        return model.loss(labels, model.stateless_call(trained, [], inputs)[0])

    @strategy.compile
    def step(state: tuple[list[jax.Array], ...], batch: tuple[jax.Array, ...]) -> tuple[object, ...]:
        trained, optimized = state
        loss, gradients = jax.value_and_grad(loss_of)(trained, *batch)
        return optimizer.stateless_apply(optimized, gradients, trained), loss

    def train(num_steps: int) -> None:
        nonlocal state
        for batch in batches(num_steps):
            state, _ = step(state, batch)

    return train


found = {"Keras": calls_a_step(fitting(made()))}
for make_strategy in (OneDeviceStrategy, MirroredStrategy):
    with make_strategy().scope():
        found[make_strategy.__name__] = calls_a_step(fitting(made()))
for make_loop in (looping, stepping):
    one = OneDeviceStrategy()
    with one.scope():
        found[make_loop.__name__] = calls_a_step(make_loop(one, made()))
print(json.dumps(found))
