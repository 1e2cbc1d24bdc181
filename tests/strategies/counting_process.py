"""Counts the calls of Python's and C's functions in a step of ``fit``: plain Keras first, then strategies.

Prints a JSON object with a number for each. Only the calls of the main thread are counted, so the numbers do not depend
on the machine.
"""

import json
import sys

import numpy as np

from lockstep.strategies import MirroredStrategy, OneDeviceStrategy, simulate_devices

simulate_devices(2)

import keras  # noqa: E402 - once Lockstep has chosen the backend

ROWS = np.zeros((8 * 40, 8), np.float32)
LABELS = np.zeros(8 * 40, np.int32)


def made() -> keras.Model:
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8), keras.layers.Dense(4)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model


def num_calls(model: keras.Model, *, num_steps: int) -> int:
    seen = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal seen
        del frame, argument
        seen += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        model.fit(ROWS[: 8 * num_steps], LABELS[: 8 * num_steps], batch_size=8, verbose=0, shuffle=False)
    finally:
        sys.setprofile(None)
    return seen


def calls_a_step(model: keras.Model) -> float:
    for num_steps in (10, 40):  # what is done once is done
        num_calls(model, num_steps=num_steps)
    return (num_calls(model, num_steps=40) - num_calls(model, num_steps=10)) / 30


found = {"Keras": calls_a_step(made())}
for strategy in (OneDeviceStrategy, MirroredStrategy):
    with strategy().scope():
        found[strategy.__name__] = calls_a_step(made())
print(json.dumps(found))
