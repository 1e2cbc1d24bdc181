"""Distributed training with Keras's fit: the guide "Distributed training with Keras" of tf.distribute, re-told.

One strategy, one `with strategy.scope():` around building and compiling, and nothing else changes. Run it on what this
machine has, or on virtual devices that stand in for accelerators:

    python examples/guides/keras_fit.py
    python examples/guides/keras_fit.py --simulate 4
"""

import argparse
import tempfile

from lockstep.data.sources import SOURCES, open_source
from lockstep.storage import join_url
from lockstep.strategies import MirroredStrategy, OneDeviceStrategy, simulate_devices
from lockstep.training import BackupAndRestore, TensorBoard, load_model, save_model

# isort: split
import keras  # after lockstep, which has it run on JAX


def parse_arguments():
    parser = argparse.ArgumentParser(description="Distributed training with Keras's fit.")
    parser.add_argument("--data", choices=SOURCES, default="fashion-mnist", help="digits need no download")
    parser.add_argument("--rows", type=int, help="train on so many images alone")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=64, help="images of a step for each replica")
    parser.add_argument("--simulate", type=int, metavar="N", help="run on N virtual devices")
    parser.add_argument("--folder", help="where checkpoints, logs and the model go; a temporary one by default")
    return parser.parse_args()


def build_model():
    """A small convolutional net that takes pixels from 0 to 255."""
    model = keras.Sequential(
        [
            keras.Input((28, 28)),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Reshape((28, 28, 1)),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def decayed(epoch, learning_rate):
    """Ten times slower for the last quarter of what the guide trains."""
    return learning_rate * 0.1 if epoch == 3 else learning_rate


def train(arguments, folder):
    strategy = MirroredStrategy()
    print(strategy.describe() + (" (simulated)" if arguments.simulate else ""))
    keras.utils.set_random_seed(1)

    source = open_source(arguments.data)
    train_data, test_data = source.splits()["train"], source.splits()["test"]
    images, labels = train_data.images[: arguments.rows], train_data.labels[: arguments.rows]
    print(f"{len(images)} images to train on, from {source.origin}")

    # `fit` takes the global batch: what all replicas share in one step. More replicas, larger batch, same time a step.
    global_batch_size = arguments.batch_size * strategy.num_replicas_in_sync

    # What makes variables stands in the scope, so that each device gets a copy of them. `fit` may stand anywhere.
    with strategy.scope():
        model = build_model()

    callbacks = [
        BackupAndRestore(join_url(folder, "checkpoints")),  # a run that is killed goes on where it was
        TensorBoard(join_url(folder, "logs")),
        keras.callbacks.LearningRateScheduler(decayed),
        keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: print(
                f"epoch {epoch + 1}: loss {logs['loss']:.4f}, accuracy {logs['accuracy']:.4f}, "
                f"learning rate {float(model.optimizer.learning_rate):.0e}"
            )
        ),
    ]
    # An uneven last batch needs no care: it gives what one device gives.
    model.fit(images, labels, batch_size=global_batch_size, epochs=arguments.epochs, callbacks=callbacks, verbose=0)

    test_images, test_labels = test_data.images, test_data.labels
    options = {"batch_size": global_batch_size, "verbose": 0, "return_dict": True}
    results = model.evaluate(test_images, test_labels, **options)
    print(f"test accuracy {results['accuracy']:.4f}, test loss {results['loss']:.4f}")

    saved = save_model(model, folder)
    # What was saved knows nothing of the strategy: it is loaded without one, ...
    alone = load_model(saved)
    # ... or within the scope of any other one.
    with OneDeviceStrategy().scope():
        on_one_device = load_model(saved)
    for how, loaded in (("without a strategy", alone), ("under another one", on_one_device)):
        results = loaded.evaluate(test_images, test_labels, **options)
        print(f"loaded {how}: test accuracy {results['accuracy']:.4f}, test loss {results['loss']:.4f}")


def main():
    arguments = parse_arguments()
    if arguments.simulate:
        simulate_devices(arguments.simulate)  # before the first computation
    with tempfile.TemporaryDirectory() as folder:
        train(arguments, arguments.folder or folder)


if __name__ == "__main__":
    main()
