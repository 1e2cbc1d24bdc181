"""A process of a job that trains for ever, until one of them does what the argument says.

`VICTIM` is the rank that does it, after it has trained for a while.
"""

import os
import signal
import sys

import keras
import numpy as np

from lockstep.strategies import MultiWorkerMirroredStrategy

NUM_CALLS = 3


def make_model(*, num_units, learning_rate):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(num_units), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(learning_rate), "mse")
    return model


def main(what):
    strategy = MultiWorkerMirroredStrategy()
    is_victim = strategy.topology.process_id == int(os.environ.get("VICTIM", "-1"))
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = make_model(
            num_units=5 if is_victim and what == "another model" else 4,
            learning_rate=0.02 if is_victim and what == "another optimizer" else 0.01,
        )
    inputs, targets = np.ones((64, 8), np.float32), np.ones((64, 1), np.float32)
    if is_victim and what == "other data":
        inputs += 1
    if is_victim and what == "another method":
        model.evaluate(inputs, targets, verbose=0)
    for _ in range(NUM_CALLS):
        model.fit(inputs, targets, batch_size=16, verbose=0)
    print("training", flush=True)
    while True:
        if is_victim and what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if is_victim and what == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if is_victim and what == "leave":
            return
        model.fit(inputs, targets, batch_size=16, verbose=0)


if __name__ == "__main__":
    main(sys.argv[1])
