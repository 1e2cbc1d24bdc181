"""Basic mirrored strategy: a copy of the model on every device, and Keras's fit.

After the first lab on distribution strategies of the course "Custom and Distributed Training with TensorFlow". The lab
trains on several devices; this one also trains on one device with the same global batches, and puts the two side by
side: they are one computation, divided.

    python examples/labs/mirrored.py
    python examples/labs/mirrored.py --simulate 4
"""

import argparse

from lockstep.data.sources import SOURCES, open_source
from lockstep.strategies import MirroredStrategy, OneDeviceStrategy, simulate_devices

# isort: split
import keras  # after lockstep, which has it run on JAX
import numpy as np


def parse_arguments():
    parser = argparse.ArgumentParser(description="A copy of the model on every device, and Keras's fit.")
    parser.add_argument("--data", choices=SOURCES, default="fashion-mnist", help="digits need no download")
    parser.add_argument("--rows", type=int, help="train on so many images alone")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64, help="images of a step for each replica")
    parser.add_argument("--simulate", type=int, metavar="N", help="run on N virtual devices")
    return parser.parse_args()


def build_model():
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
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(), loss, metrics=["accuracy"])
    return model


def train(strategy, splits, *, arguments, global_batch_size):
    """Trains a new model under a strategy; returns the losses of its epochs, its test results, and its weights."""
    keras.utils.set_random_seed(1)  # the same first weights, the same order of images
    with strategy.scope():
        model = build_model()
    images, labels = splits["train"].images[: arguments.rows], splits["train"].labels[: arguments.rows]
    history = model.fit(images, labels, batch_size=global_batch_size, epochs=arguments.epochs, verbose=0)
    results = model.evaluate(splits["test"].images, splits["test"].labels, verbose=0)
    return history.history["loss"], results, model.get_weights()


def main():
    arguments = parse_arguments()
    if arguments.simulate:
        simulate_devices(arguments.simulate)  # before the first computation
    strategy = MirroredStrategy()
    # Each replica has as many images in a step as one device would have: that is what makes more devices worth having.
    global_batch_size = arguments.batch_size * strategy.num_replicas_in_sync
    print(strategy.describe() + (" (simulated)" if arguments.simulate else ""))
    print(f"{strategy.num_replicas_in_sync} replicas in sync, {global_batch_size} images in a global batch")

    splits = open_source(arguments.data).splits()
    options = {"arguments": arguments, "global_batch_size": global_batch_size}
    losses, (test_loss, test_accuracy), weights = train(strategy, splits, **options)
    print(f"all devices: losses {np.round(losses, 4)}, {test_loss=:.4f}, {test_accuracy=:.4f}")
    losses, (test_loss, test_accuracy), weights_alone = train(OneDeviceStrategy(), splits, **options)
    print(f"one device:  losses {np.round(losses, 4)}, {test_loss=:.4f}, {test_accuracy=:.4f}")
    largest = max(np.abs(found - alone).max() for found, alone in zip(weights, weights_alone, strict=True))
    print(f"the weights differ by {largest:.0e}")


if __name__ == "__main__":
    main()
