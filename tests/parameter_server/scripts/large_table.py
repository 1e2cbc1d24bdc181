"""A table of 12 GiB beside workers that may have 4 GiB each: none of them could hold it.

Prints how the loss of two epochs was, and whether the table fits into what a worker may have.
"""

from __future__ import annotations

import json
import resource

import numpy as np

from lockstep.parameter_server import Embedding, ParameterServerStrategy
from lockstep.topology import Topology

# isort: split
import keras

NUM_ROWS, NUM_COLUMNS = 50_000_000, 64
MAY_HAVE_BYTES = 4 << 30
NUM_EXAMPLES, BATCH_SIZE = 4096, 64

if Topology.from_env().task.role != "ps":
    resource.setrlimit(resource.RLIMIT_DATA, (MAY_HAVE_BYTES, MAY_HAVE_BYTES))
strategy = ParameterServerStrategy()
with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((2,), dtype="int32"),
            Embedding(NUM_ROWS, NUM_COLUMNS, optimizer="adagrad"),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01), keras.losses.BinaryCrossentropy(from_logits=True))
try:
    np.ones((NUM_ROWS, NUM_COLUMNS), np.float32)
    fits = True
except MemoryError:
    fits = False
random = np.random.default_rng(0)
ids = random.integers(0, NUM_ROWS, (NUM_EXAMPLES, 2)).astype(np.int32)
clicks = (ids[:, 0] % 2).astype(np.float32)
history = model.fit(ids, clicks, batch_size=BATCH_SIZE, steps_per_epoch=NUM_EXAMPLES // BATCH_SIZE, epochs=8, verbose=0)
print(json.dumps({"fits": fits, "loss": history.history["loss"]}))
