"""Clicks of which the best prediction is known, trained in every role.

Each example has two ids of ten million: half of them are drawn by Zipf's law, half are any of 20,000, and all are
spread over the whole table. Its odds are those of the sum of two numbers that come from the ids alone. Prints how many
different ids the training has met, the test's accuracy and loss, and those of who knows the numbers.
"""

from __future__ import annotations

import json

import numpy as np

from lockstep.parameter_server import Embedding, ParameterServerStrategy, row_optimizer

# isort: split
import keras

NUM_ROWS = 10_000_000
NUM_OFTEN_MET = 20_000
NUM_TRAINED, NUM_TESTED = 3_000_000, 50_000
BATCH_SIZE = 500


def draw(count, *, seed):
    random = np.random.default_rng(seed)
    ranks = np.where(
        random.random((count, 2)) < 0.5,
        np.minimum(random.zipf(2.0, size=(count, 2)), NUM_ROWS),
        random.integers(1, NUM_OFTEN_MET + 1, (count, 2)),
    )
    ids = (ranks * 7_919_993 + np.array([0, 5_000_011])) % NUM_ROWS  # the factor shares no divisor with the rows
    odds = np.where(ids * 2_654_435_761 % 97 < 48, -2.0, 2.0).sum(1) + 1.0
    return ids.astype(np.int32), (random.random(count) < 1 / (1 + np.exp(-odds))).astype(np.float32), odds


strategy = ParameterServerStrategy()
with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((2,), dtype="int32"),
            Embedding(
                NUM_ROWS, 4, embeddings_initializer="zeros", optimizer=row_optimizer("adagrad", learning_rate=0.2)
            ),
            keras.layers.Flatten(),
            keras.layers.Dense(1, kernel_initializer="ones"),
        ]
    )
    model.compile(
        keras.optimizers.SGD(0.01),
        keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[keras.metrics.BinaryAccuracy(threshold=0.0)],
    )
ids, clicks, _ = draw(NUM_TRAINED, seed=0)
num_met = len(np.unique(ids))
model.fit(ids, clicks, batch_size=BATCH_SIZE, steps_per_epoch=NUM_TRAINED // BATCH_SIZE, epochs=1, verbose=2)
ids, clicks, odds = draw(NUM_TESTED, seed=1)
loss, accuracy = model.evaluate(ids, clicks, batch_size=1000, verbose=0)
best_loss = float(np.mean(np.log1p(np.exp(-np.where(clicks > 0, odds, -odds)))))
best_accuracy = float(np.mean((odds > 0) == (clicks > 0)))
best = {"best_loss": best_loss, "best_accuracy": best_accuracy}
print(json.dumps({"num_met": num_met, "loss": loss, "accuracy": accuracy, **best}))
