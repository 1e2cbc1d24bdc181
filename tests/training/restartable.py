"""A program that `test_backup` kills: trains on shuffled batches, and writes what came out if it gets that far."""

import logging
import os
import signal
import sys

import keras
import numpy as np

from lockstep.data import Batches
from lockstep.strategies import from_env
from lockstep.testing.strategies import make_model, make_rows
from lockstep.training import BackupAndRestore

BATCH_SIZE = 12  # 67 rows: five whole batches and one of 7
NUM_EPOCHS = 3


class Rows:
    """Records by number; a record is its own number."""

    def __len__(self):
        return len(make_rows()[0])

    def __getitem__(self, index):
        return int(index).to_bytes(4, "big")


class Note(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.batches, self.epochs = [], []

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        self.batches.append((self.epoch, batch, logs["loss"]))

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append((epoch, logs["loss"], logs["accuracy"]))


def main(directory, result, kill_step):
    logging.basicConfig(level=logging.INFO, force=True)  # importing Keras has set up a handler
    strategy = from_env("mirrored")
    keras.utils.set_random_seed(11)
    inputs, labels = make_rows()

    def transform(records):
        indices = np.array([int.from_bytes(record, "big") for record in records])
        return inputs[indices], labels[indices]

    data = Batches(Rows(), batch_size=BATCH_SIZE, transform=transform, seed=2)
    with strategy.scope():
        model = make_model()
    backup = BackupAndRestore(directory, save_freq=2)
    note = Note()
    steps_seen = [0]

    def kill(batch, logs):
        steps_seen[0] += 1
        if steps_seen[0] == int(kill_step):
            backup._directory.wait()
            os.kill(os.getpid(), signal.SIGKILL)

    dying = keras.callbacks.LambdaCallback(on_train_batch_end=kill)
    model.fit(data, epochs=NUM_EPOCHS, verbose=0, callbacks=[note, backup, dying])
    weights = {
        f"weight_{number}": np.asarray(variable)
        for number, variable in enumerate([*model.variables, *model.optimizer.variables])
    }
    np.savez(result, batches=note.batches, epochs=note.epochs, **weights)


if __name__ == "__main__":
    main(*sys.argv[1:])
