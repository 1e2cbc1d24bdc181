"""Several machines and Keras's fit: the guide "Multi-worker training with Keras" of tf.distribute, re-told.

Every process runs this same script; `TF_CONFIG` tells each one who is in the job and which of them it is. A job of
`lockstep submit` has it set. By hand, two processes on one machine:

    export CLUSTER='{"worker": ["127.0.0.1:12345", "127.0.0.1:12346"]}'
    TF_CONFIG='{"cluster": '$CLUSTER', "task": {"type": "worker", "index": 0}}' \
        python examples/guides/multi_worker_keras.py --folder /tmp/guide &
    TF_CONFIG='{"cluster": '$CLUSTER', "task": {"type": "worker", "index": 1}}' \
        python examples/guides/multi_worker_keras.py --folder /tmp/guide

Without TF_CONFIG it is a job of one process. Kill one process while it trains: the other one says which and ends. Start
both again with the same folder: they go on from the last checkpoint.
"""

import argparse
import tempfile

from lockstep.data import Batches
from lockstep.data.sources import SOURCES, open_source
from lockstep.storage import join_url
from lockstep.strategies import MultiWorkerMirroredStrategy, simulate_devices
from lockstep.training import BackupAndRestore, TensorBoard, load_model, save_model

# isort: split
import keras  # after lockstep, which has it run on JAX
import numpy as np


def parse_arguments():
    parser = argparse.ArgumentParser(description="Several machines and Keras's fit.")
    parser.add_argument("--data", choices=SOURCES, default="fashion-mnist", help="digits need no download")
    parser.add_argument("--rows", type=int, help="train on so many images alone")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64, help="images of a step for each replica")
    parser.add_argument("--simulate", type=int, metavar="N", help="N virtual devices in this process")
    parser.add_argument("--folder", help="where checkpoints, logs and the model go; a temporary one by default")
    return parser.parse_args()


def build_model():
    model = keras.Sequential(
        [
            keras.Input((28, 28)),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(), loss, metrics=["accuracy"])
    return model


def to_arrays(examples):
    """Makes a batch of what was read, one dict for each image."""
    return tuple(np.stack([example[name] for example in examples]) for name in ("image", "label"))


def train(arguments, folder):
    # First of all: the processes meet here, which they cannot do any more once JAX computes.
    strategy = MultiWorkerMirroredStrategy()
    topology = strategy.topology
    name = f"{topology.task.role} {topology.task.index}"
    print(f"{name}: {strategy.describe()}{' (simulated)' if arguments.simulate else ''}, chief: {strategy.is_chief}")
    keras.utils.set_random_seed(1)  # the same in every process, or in none

    splits = open_source(arguments.data).splits()
    global_batch_size = arguments.batch_size * strategy.num_replicas_in_sync
    # All processes go through the same global batches; the input context has each of them read its own rows alone.
    options = {"batch_size": global_batch_size, "transform": to_arrays, "input_context": strategy.input_context}
    train_batches = Batches(list(splits["train"])[: arguments.rows], seed=1, **options)
    test_batches = Batches(list(splits["test"]), **options)

    with strategy.scope():
        model = build_model()
    # Every process calls all of this, though the first one alone writes: the others take part in what it computes.
    callbacks = [BackupAndRestore(join_url(folder, "checkpoints")), TensorBoard(join_url(folder, "logs"))]
    history = model.fit(train_batches, epochs=arguments.epochs, callbacks=callbacks, verbose=0).history
    for epoch, loss, accuracy in zip(range(arguments.epochs), history["loss"], history["accuracy"], strict=False):
        print(f"{name}: epoch {arguments.epochs - len(history['loss']) + epoch + 1}: {loss=:.4f}, {accuracy=:.4f}")
    results = model.evaluate(test_batches, verbose=0, return_dict=True)
    print(f"{name}: test accuracy {results['accuracy']:.4f}, test loss {results['loss']:.4f}")

    saved = save_model(model, folder)  # the chief writes
    if strategy.is_chief:
        # Without the strategy's scope a model is this process's own: no other one need take part.
        test = splits["test"]
        alone = load_model(saved).evaluate(test.images, test.labels, verbose=0, return_dict=True)
        print(f"{name}: saved, and loaded alone: test accuracy {alone['accuracy']:.4f}, test loss {alone['loss']:.4f}")


def main():
    arguments = parse_arguments()
    if arguments.simulate:
        simulate_devices(arguments.simulate)  # before the processes meet
    with tempfile.TemporaryDirectory() as folder:
        train(arguments, arguments.folder or folder)


if __name__ == "__main__":
    main()
