"""A script that ends right after it began to write something in the background; arguments say what, and how it ends."""

import os
import signal
import sys

import keras
import numpy as np

from lockstep.checkpoints import CheckpointDirectory, Position, TrainingState
from lockstep.strategies import OneDeviceStrategy
from lockstep.training import TensorBoard


def end(how):
    if how == "sys.exit":
        sys.exit(0)
    if how == "exception":
        raise RuntimeError("of the script")
    if how == "SIGTERM":
        os.kill(os.getpid(), signal.SIGTERM)


def main(what, how, folder):
    with OneDeviceStrategy().scope():
        model = keras.Sequential([keras.Input((2000,)), keras.layers.Dense(4000, use_bias=False)])
        model.compile("sgd", "mse")
    if what == "checkpoint":
        directory = CheckpointDirectory(folder)
        for step in (10, 20, 30):
            directory.save(TrainingState.capture(model, position=Position(epoch=0, batch=0, step=step)))
        end(how)
    else:
        late = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: batch == 3 and end(how))
        rows = np.ones((4, 2000), np.float32)
        board = TensorBoard(folder, update_freq=1)
        model.fit(rows, np.ones((4, 4000)), batch_size=1, verbose=0, callbacks=[board, late])


if __name__ == "__main__":
    main(*sys.argv[1:])
