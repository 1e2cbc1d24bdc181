"""A process of a job with a row of data that is not finite: ``diverging_process.py ACTION``, under `STRATEGY`.

Prints what `Divergence` has said, the steps that were skipped, and whether all parameters are finite.
"""

import logging
import os
import sys

import numpy as np

from lockstep.data import Batches
from lockstep.errors import DivergenceError
from lockstep.parameter_server import LocalProcesses, ParameterServerStrategy
from lockstep.strategies import MultiWorkerMirroredStrategy, ShardedStrategy
from lockstep.strategies.gathering import whole_value
from lockstep.training import Divergence

# isort: split
import keras

NUM_ROWS, BATCH, BAD_ROW = 48, 8, 21
STRATEGIES = {
    "multi_worker": MultiWorkerMirroredStrategy,
    "sharded": lambda: ShardedStrategy(stage=3, min_shard_elements=1),
    "parameter_server": lambda: ParameterServerStrategy(LocalProcesses(num_workers=1, num_servers=1)),
}


class Numbers:
    def __len__(self):
        return NUM_ROWS

    def __getitem__(self, index):
        return bytes([index])


def transform(records):
    numbers = np.array([record[0] for record in records], np.float32)
    x = np.sin(numbers[:, None] * np.arange(1, 4, dtype=np.float32))
    x[numbers == BAD_ROW] = np.nan
    return x, x[:, :1]


def main(action):
    logging.basicConfig(force=True)
    name = os.environ["STRATEGY"]
    strategy = STRATEGIES[name]()
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    guard = Divergence(action)
    data = Batches(Numbers(), batch_size=BATCH, transform=transform, input_context=strategy.input_context)
    options = {"epochs": 2, "verbose": 0, "callbacks": [guard]}
    if name == "parameter_server":
        options["steps_per_epoch"] = NUM_ROWS // BATCH
    try:
        model.fit(data, **options)
    except DivergenceError as error:
        print(f"error: {error}")
    if name != "parameter_server":
        values = [whole_value(variable.value) for variable in model.trainable_variables]
        print(f"skipped {guard.skipped}, finite: {all(np.isfinite(value).all() for value in values)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
