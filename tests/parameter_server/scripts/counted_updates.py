"""A model of which each applied update takes one from every weight: what it ends with says how many there were.

Trains for some seconds, and prints how many steps the optimizer has counted and what the weights are.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np

import lockstep
from lockstep.parameter_server import Embedding, FixedShardsPartitioner, ParameterServerStrategy, row_optimizer

# isort: split
import keras

parser = argparse.ArgumentParser()
parser.add_argument("for_s", type=float)
parser.add_argument("backups", nargs="?", help="a folder for them")
parser.add_argument("--steps-per-execution", type=int, default=1)
parser.add_argument("--max-staleness", type=int)
parser.add_argument("--num-backup-workers", type=int)
parser.add_argument("--steps", type=int, default=100, help="of an epoch")
options = parser.parse_args()
STEPS = options.steps


class Weight(keras.layers.Layer):
    def build(self, input_shape):
        self.w = self.add_weight(shape=(6,), initializer="zeros", name="w")

    def call(self, inputs):
        return keras.ops.sum(inputs, axis=(1, 2)) + keras.ops.sum(self.w)


class Timed(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.num_epochs = 0
        self.ends_s = time.monotonic() + options.for_s

    def on_train_batch_end(self, batch, logs=None):
        if batch == 500:
            print("500 steps of a long epoch", flush=True)

    def on_epoch_end(self, epoch, logs=None):
        self.num_epochs += 1
        print(f"epoch {self.num_epochs} of {STEPS} steps", flush=True)
        self.model.stop_training = time.monotonic() > self.ends_s


strategy = ParameterServerStrategy(
    None,
    FixedShardsPartitioner(2),
    max_staleness=options.max_staleness,
    num_backup_workers=options.num_backup_workers,
)
with strategy.scope():
    table = Embedding(
        9, 2, embeddings_initializer="zeros", optimizer=row_optimizer("sgd", learning_rate=1.0), name="table"
    )
    model = keras.Sequential([keras.Input((3,), dtype="int32"), table, Weight()])
    model.compile(
        keras.optimizers.SGD(1.0),
        loss=lambda _, outputs: keras.ops.mean(outputs),
        steps_per_execution=options.steps_per_execution,
    )
ids = np.tile(np.array([0, 1, 2], np.int32), (4, 1))
timed = Timed()
backups = [lockstep.training.BackupAndRestore(options.backups)] if options.backups else []
model.fit(ids, np.zeros(4), batch_size=4, steps_per_epoch=STEPS, epochs=10**6, callbacks=[*backups, timed], verbose=0)
with strategy.scope():
    rows = np.asarray(table(np.array([[0, 1, 2]])))
dense = model.layers[-1].w.numpy().tolist()
num_counted = int(model.optimizer.iterations.numpy())
found = {"num_epochs": timed.num_epochs, "num_counted": num_counted, "dense": dense, "rows": rows.ravel().tolist()}
print(json.dumps(found), flush=True)
