"""Lockstep's side, by Keras's ``fit``: ``python -m pushing.ours ORDER``.

One script for all roles, told by TF_CONFIG. By default a step is computed while the last one's push is under way, with
parameters that are one step older; without ``overlaps`` in the order it is not.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from harness.protocol import read_order, say

import lockstep.parameter_server as ps
from pushing.cases import (
    CASES,
    FIELDS,
    NUM_JUDGED,
    PIXELS,
    ROW_LEARNING_RATE,
    TABLE_COLUMNS,
    TABLE_ROWS,
    TABLE_SCALE,
    TABLE_SEED,
    Case,
    initial_dense,
    load,
)
from pushing.measure import timed

# isort: split
import keras  # after lockstep, which has it run on JAX


class TimedEpoch(keras.callbacks.Callback):
    """Times the second epoch."""

    def __init__(self) -> None:
        super().__init__()
        self._stack = ExitStack()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            self._stack.enter_context(timed())

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._stack.close()


def make_model(case: Case, *, steps_per_execution: int) -> Any:
    (hidden, hidden_bias), (last, last_bias) = initial_dense(case)
    first = [keras.Input((PIXELS,), dtype="uint8"), keras.layers.Rescaling(1 / 255)]
    if case.has_table:
        values = keras.initializers.RandomUniform(-TABLE_SCALE, TABLE_SCALE, seed=TABLE_SEED)
        table = ps.Embedding(
            TABLE_ROWS,
            TABLE_COLUMNS,
            embeddings_initializer=values,
            optimizer=ps.row_optimizer("sgd", learning_rate=ROW_LEARNING_RATE),
        )
        first = [keras.Input((FIELDS,), dtype="int32"), table, keras.layers.Flatten()]
    layers = [keras.layers.Dense(len(hidden_bias), activation="relu"), keras.layers.Dense(len(last_bias))]
    model = keras.Sequential([*first, *layers])
    for layer, values in zip(layers, ((hidden, hidden_bias), (last, last_bias)), strict=True):
        layer.set_weights(values)
    kind = keras.losses.BinaryCrossentropy if case.has_table else keras.losses.SparseCategoricalCrossentropy
    model.compile(optimizer_of(case), kind(from_logits=True), steps_per_execution=steps_per_execution)
    return model


def optimizer_of(case: Case) -> Any:
    kind = keras.optimizers.Adam if case.optimizer == "adam" else keras.optimizers.SGD
    return kind(case.learning_rate)


def main() -> None:
    logging.getLogger("lockstep").setLevel(logging.INFO)  # servers say what they were asked for
    logging.basicConfig(format="%(message)s", force=True)  # Keras may have set logging up by now
    order = read_order()
    case = CASES[order["case"]]
    strategy = ps.ParameterServerStrategy(overlaps=order["overlaps"])
    with strategy.scope():
        model = make_model(case, steps_per_execution=order["num_together"])
    inputs, labels = load(case, Path(order["folder"]))
    options = {"batch_size": case.batch_size, "shuffle": False, "verbose": 0}
    fitted = model.fit(inputs, labels, steps_per_epoch=case.num_steps, epochs=2, callbacks=[TimedEpoch()], **options)
    loss = model.evaluate(inputs[:NUM_JUDGED], labels[:NUM_JUDGED], batch_size=1024, verbose=0)
    say({"loss": loss, "staleness": fitted.history["staleness"][-1]})


if __name__ == "__main__":
    main()
