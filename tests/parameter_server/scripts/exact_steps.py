"""Trains fifty synchronous steps by ``fit`` with an optimizer of Keras, by its class, and writes the variables.

``exact_steps.py OPTIMIZER RESULT``; the test that reads the result trains the same model on one device.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from lockstep.parameter_server import FixedShardsPartitioner, ParameterServerStrategy

# isort: split
import keras

NUM_STEPS, BATCH_SIZE = 50, 16


def make_model(optimizer: str) -> Any:
    keras.utils.set_random_seed(7)
    layers = [
        keras.layers.Dense(12, activation="relu", kernel_regularizer="l2"),
        keras.layers.BatchNormalization(),
        keras.layers.Dense(3),
    ]
    model = keras.Sequential([keras.Input((8,)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(getattr(keras.optimizers, optimizer)(), loss, metrics=["accuracy"])
    return model


def train(model: Any) -> dict[str, Any]:
    """Trains a model on the rows of this test; returns its history and variables."""
    random = np.random.default_rng(0)
    inputs = random.normal(size=(NUM_STEPS * BATCH_SIZE, 8)).astype(np.float32)
    fitted = model.fit(
        inputs,
        inputs[:, :3].argmax(1).astype(np.int32),
        batch_size=BATCH_SIZE,
        steps_per_epoch=NUM_STEPS,
        shuffle=False,
        verbose=0,
    )
    variables = {f"v{number}": np.array(variable) for number, variable in enumerate(model.variables)}
    return {"loss": fitted.history["loss"][0], "accuracy": fitted.history["accuracy"][0], **variables}


if __name__ == "__main__":
    strategy = ParameterServerStrategy(None, FixedShardsPartitioner(2), num_backup_workers=0)
    with strategy.scope():
        made = make_model(sys.argv[1])
    np.savez(sys.argv[2], **train(made))
