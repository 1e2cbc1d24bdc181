"""One of the processes of `test_multi_worker`: trains, evaluates and predicts, and writes what came out."""

import os
import sys

import keras
import numpy as np

from lockstep.checkpoints import CheckpointDirectory, Position, TrainingState
from lockstep.strategies import MultiWorkerMirroredStrategy, OneDeviceStrategy, from_env, rows_of_batch
from lockstep.testing.strategies import make_model, make_rows
from lockstep.topology import Topology


def some_rows():
    inputs, labels = make_rows()
    return inputs[:66], labels[:66]


class SharedBatches(keras.utils.PyDataset):
    """Each process's rows of every global batch, in one fixed order."""

    def __init__(self, context, batch_size):
        super().__init__()
        self.inputs, self.labels = some_rows()
        self.context = context
        self.batch_size = batch_size
        self.partial_batch_size = len(self.inputs) % batch_size or None

    def __len__(self):
        return -(-len(self.inputs) // self.batch_size)

    def __getitem__(self, batch):
        rows = self.context.rows_to_read(rows_of_batch(self, batch))
        indices = np.array(rows) + batch * self.batch_size
        return self.inputs[indices], self.labels[indices]

    def seek(self, *, epoch, batch):
        raise AssertionError("nothing is restored here")


def check_checkpoints(model, directory):
    """The chief alone sees its directory; the state that it reads reaches both processes."""
    inputs, labels = make_rows()
    with CheckpointDirectory(directory) as checkpoints:
        assert checkpoints.restore() is None
        saved = TrainingState.capture(model, position=Position(epoch=3, batch=0, step=9))
        checkpoints.save(saved)
        checkpoints.wait()
        model.train_on_batch(inputs[:5], labels[:5])
        restored = checkpoints.restore()
    assert restored.position == saved.position
    restored.apply(model)
    restored.apply_metrics(model)
    now = TrainingState.capture(model, position=restored.position)
    assert (now.paths, now.generators) == (saved.paths, saved.generators)
    for group, arrays in saved.arrays.items():
        for key, value in arrays.items():
            np.testing.assert_array_equal(now.arrays[group][key], value)


def check_single_batches(strategy):
    """A batch that every process gives to ``train_on_batch`` is computed once, not once a process."""
    num_rows = set()

    class Counting(keras.layers.Layer):
        def call(self, inputs):
            num_rows.add(inputs.shape[0])
            return inputs

    inputs, _ = some_rows()
    with strategy.scope():
        model = keras.Sequential([keras.Input(inputs.shape[1:]), Counting(), keras.layers.Flatten()])
        model.compile("sgd", "mse")
    model.train_on_batch(inputs[:6], np.reshape(inputs[:6], (6, -1)))
    assert {rows for rows in num_rows if isinstance(rows, int)} == {6}


def main(batch_size, path):
    strategy = OneDeviceStrategy() if path.endswith("alone.npz") else from_env()
    keras.utils.set_random_seed(5)
    with strategy.scope():
        model = make_model()
    shared = SharedBatches(strategy.input_context, batch_size)
    losses = []
    note = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: losses.append(logs["loss"]))
    model.fit(shared, epochs=2, verbose=0, callbacks=[note])
    inputs, labels = some_rows()
    model.fit(inputs, labels, batch_size=batch_size, verbose=0, callbacks=[note])  # whole batches in every process
    evaluation = model.evaluate(shared, verbose=0)
    predictions = model.predict(inputs, batch_size=batch_size, verbose=0)
    weights = {f"weight_{number}": np.asarray(variable) for number, variable in enumerate(model.variables)}
    np.savez(path, losses=losses, evaluation=evaluation, predictions=predictions, **weights)
    check_checkpoints(model, f"{path}.checkpoints")
    check_single_batches(strategy)
    again = MultiWorkerMirroredStrategy() if strategy.cluster_resolver else strategy
    print(again.describe(), strategy.is_chief)


if __name__ == "__main__":
    rank = Topology.from_env().process_id
    main(int(sys.argv[1]), f"{os.environ['FOLDER']}/{rank}.npz")
