"""A program that `test_backup` kills: trains on packed pictures, and writes what came out if it gets that far.

``restartable.py CHECKPOINTS RECORDS RESULT KILL_STEP READERS``; the last are arguments of `Batches` that say who reads.
"""

import json
import logging
import os
import signal
import sys

import keras
import numpy as np

from lockstep.data import Batches, ExampleParser, FixedLenFeature, RecordSource
from lockstep.data.images import ImageDecoder, RandomFlip, RandomRotation, Rescaling
from lockstep.strategies import ShardedStrategy, from_env
from lockstep.strategies.gathering import whole_value
from lockstep.testing.strategies import NUM_CLASSES
from lockstep.training import BackupAndRestore

NUM_RECORDS = 67
BATCH_SIZE = 12  # five whole batches and one of 7
NUM_EPOCHS = 3
SIZE = 10
FEATURES = {
    "image": FixedLenFeature((), bytes),
    "label": FixedLenFeature((), np.int64),
    "number": FixedLenFeature((), np.int64),
}


@keras.saving.register_keras_serializable()
class Seen(keras.layers.Layer):
    """Counts how often each record was trained on; the counts are state of the model, as its parameters are."""

    def build(self, image_shape, number_shape):
        self.counts = self.add_weight(
            shape=(NUM_RECORDS,), initializer="zeros", trainable=False, name="counts", dtype="float32"
        )

    def call(self, image, number, training=False):
        if training:
            ones = keras.ops.one_hot(number, NUM_RECORDS, dtype="float32")
            self.counts.assign(self.counts + keras.ops.sum(ones, axis=0))
        return image


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


def make_model():
    image, number = keras.Input((SIZE, SIZE, 3), name="image"), keras.Input((), dtype="int32", name="number")
    values = Seen()(image, number)
    values = keras.layers.Conv2D(4, 3, use_bias=False)(values)
    values = keras.layers.ReLU()(keras.layers.BatchNormalization()(values))
    values = keras.layers.Dropout(0.3)(keras.layers.Flatten()(values))
    model = keras.Model({"image": image, "number": number}, keras.layers.Dense(NUM_CLASSES)(values))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
    return model


def read(records, input_context, **readers):
    parse = ExampleParser(FEATURES)
    decode = ImageDecoder(RandomRotation(0.1), RandomFlip(), Rescaling(1 / 127.5, -1))

    def transform(batch, random):
        columns = parse(batch)
        inputs = {"image": decode(columns["image"], random), "number": columns["number"].astype(np.int32)}
        return inputs, columns["label"]

    source = RecordSource(f"{records}/*.tfrec")
    return Batches(
        source, batch_size=BATCH_SIZE, random_transform=transform, seed=2, input_context=input_context, **readers
    )


def main(directory, records, result, kill_step, readers):
    logging.basicConfig(level=logging.INFO, force=True)  # importing Keras has set up a handler
    name = os.environ.get("STRATEGY", "mirrored")
    strategy = ShardedStrategy(min_shard_elements=1) if name == "sharded" else from_env(name)
    keras.utils.set_random_seed(11)
    data = read(records, strategy.input_context, **json.loads(readers))
    with strategy.scope():
        model = make_model()
    backup = BackupAndRestore(directory, save_freq=2)
    note = Note()
    steps_seen = [0]

    def kill(batch, logs):
        steps_seen[0] += 1
        if steps_seen[0] == int(kill_step):
            backup._backups._directory.wait()
            os.kill(os.getpid(), signal.SIGKILL)

    dying = keras.callbacks.LambdaCallback(on_train_batch_end=kill)
    model.fit(data, epochs=NUM_EPOCHS, verbose=0, callbacks=[note, backup, dying])
    weights = {
        f"weight_{number}": whole_value(variable.value)
        for number, variable in enumerate([*model.variables, *model.optimizer.variables])
    }
    (seen,) = (whole_value(layer.counts.value) for layer in model.layers if isinstance(layer, Seen))
    if not strategy.is_chief:
        return
    np.savez(result, batches=note.batches, epochs=note.epochs, seen=seen, **weights)


if __name__ == "__main__":
    main(*sys.argv[1:])
