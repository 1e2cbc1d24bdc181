"""Saved under one strategy, loaded under another: the guide "Save and load a model using a distribution strategy" of
tf.distribute, re-told.

A whole model, weights alone, and checkpoints of a run: each is written from one strategy and read under strategies with
other numbers of devices.

    python examples/guides/save_and_load.py --simulate 4
"""

import argparse
import tempfile

from lockstep.data import Batches
from lockstep.data.sources import SOURCES, open_source
from lockstep.storage import join_url
from lockstep.strategies import MirroredStrategy, OneDeviceStrategy, ShardedStrategy, simulate_devices
from lockstep.training import BackupAndRestore, load_model, save_model

# isort: split
import keras  # after lockstep, which has it run on JAX
import numpy as np


def parse_arguments():
    parser = argparse.ArgumentParser(description="Saved under one strategy, loaded under another.")
    parser.add_argument("--data", choices=SOURCES, default="fashion-mnist", help="digits need no download")
    parser.add_argument("--rows", type=int, default=10_000, help="train on so many images alone")
    parser.add_argument("--simulate", type=int, metavar="N", help="run on N virtual devices")
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
    model.optimizer.build(model.trainable_variables)  # so that it is there when its state is loaded
    return model


def to_arrays(examples):
    """Makes a batch of what was read, one dict for each image."""
    return tuple(np.stack([example[name] for example in examples]) for name in ("image", "label"))


def difference(model, images, expected):
    """Says how far a model's predictions are from others at the most."""
    return f"{np.abs(model.predict(images, verbose=0) - expected).max():.1e}"


def other_strategies():
    """What a model that was trained on all devices is loaded under."""
    yield OneDeviceStrategy()
    yield ShardedStrategy()  # each device keeps its part of the parameters


def save_and_load_models(model, data, *, folder):
    """The architecture, the weights and the optimizer in one file; going on needs nothing else."""
    images, expected = data.images[:512], model.predict(data.images[:512], verbose=0)
    saved = save_model(model, join_url(folder, "model"))
    print(f"no strategy: predictions differ by {difference(load_model(saved), images, expected)}")
    for strategy in other_strategies():
        with strategy.scope():
            loaded = load_model(saved)
        print(f"{strategy.describe()}: predictions differ by {difference(loaded, images, expected)}")
        loaded.fit(data.images, data.labels, batch_size=256, epochs=1, verbose=0)
        print(f"  trained on: {int(model.optimizer.iterations)} steps, then {int(loaded.optimizer.iterations)}")


def save_and_load_weights(model, data, *, folder):
    """The weights, and the optimizer's state with them, into a model that the program builds."""
    images, expected = data.images[:512], model.predict(data.images[:512], verbose=0)
    path = f"{folder}/model.weights.h5"
    model.save_weights(path)
    for strategy in other_strategies():
        with strategy.scope():
            loaded = build_model()
            loaded.load_weights(path)
        print(f"{strategy.describe()}: predictions differ by {difference(loaded, images, expected)}")


def stop_and_go_on(data, *, folder):
    """A run of 3 epochs on all devices, and one of 1 epoch on all of them that goes on for 2 more on one device."""
    runs = {"whole": [(MirroredStrategy, 3)], "parts": [(MirroredStrategy, 1), (OneDeviceStrategy, 3)]}
    outcomes = []
    for name, starts in runs.items():
        for make_strategy, epochs in starts:
            keras.utils.set_random_seed(2)
            batches = Batches(list(data)[:1000], batch_size=256, transform=to_arrays, seed=2)
            strategy = make_strategy()
            with strategy.scope():
                model = build_model()
            backup = BackupAndRestore(join_url(folder, f"checkpoints-{name}"))
            model.fit(batches, epochs=epochs, callbacks=[backup], verbose=0)
            print(f"{name}: {strategy.describe()}, up to epoch {epochs}, {int(model.optimizer.iterations)} steps")
        outcomes.append(model.get_weights())
    largest = max(np.abs(whole - parts).max() for whole, parts in zip(*outcomes, strict=True))
    print(f"weights differ by {largest:.1e}")


def main():
    arguments = parse_arguments()
    if arguments.simulate:
        simulate_devices(arguments.simulate)  # before the first computation
    keras.utils.set_random_seed(1)
    splits = open_source(arguments.data).splits()
    train_data, test_data = splits["train"], splits["test"]

    strategy = MirroredStrategy()
    print(strategy.describe() + (" (simulated)" if arguments.simulate else ""))
    with strategy.scope():
        model = build_model()
    images, labels = train_data.images[: arguments.rows], train_data.labels[: arguments.rows]
    model.fit(images, labels, batch_size=256, epochs=2, verbose=0)

    with tempfile.TemporaryDirectory() as folder:
        print("\n1. A whole model")
        save_and_load_models(model, test_data, folder=folder)
        print("\n2. Weights")
        save_and_load_weights(model, test_data, folder=folder)
        print("\n3. Checkpoints of a run")
        stop_and_go_on(train_data, folder=folder)


if __name__ == "__main__":
    main()
