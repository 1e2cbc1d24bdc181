"""One of the processes of `test_save_elsewhere`: loads what others saved, trains on, and saves."""

import os
import sys
from pathlib import Path

import keras
import numpy as np

from lockstep.checkpoints import CheckpointDirectory, Position, TrainingState
from lockstep.strategies import from_env
from lockstep.training import load_model, save_model

NUM_ROWS = 8


def rows():
    generator = np.random.default_rng(0)
    return generator.normal(size=(NUM_ROWS, 6)).astype(np.float32), generator.integers(0, 3, NUM_ROWS)


def make_model():
    layers = [keras.layers.Dense(16), keras.layers.BatchNormalization(), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((6,)), *layers])
    model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def train_and_save(strategy, folder):
    """Trains a model and saves it whole and as a checkpoint; returns what it then holds."""
    inputs, labels = rows()
    keras.utils.set_random_seed(4)
    with strategy.scope():
        model = make_model()
    model.fit(inputs, labels, batch_size=4, epochs=2, verbose=0)
    save_model(model, str(folder))
    with CheckpointDirectory(folder / "checkpoints") as checkpoints:
        state = TrainingState.capture(model, position=Position(epoch=2, batch=0, step=4))
        checkpoints.save(state)
    return content(model)


def content(model):
    state = TrainingState.capture(model, position=Position(epoch=0, batch=0, step=0))
    groups = ("trainable", "non_trainable", "optimizer")
    return {f"{group}.{number}": value for group in groups for number, value in state.arrays[group].items()}


def loaded(strategy, folder):
    """Returns what a model holds that was loaded whole, and one that went on from the checkpoint."""
    with strategy.scope():
        whole = load_model(str(folder))
        restored = make_model()
    with CheckpointDirectory(folder / "checkpoints") as checkpoints:
        checkpoints.restore().apply(restored)
    return content(whole), content(restored)


def main(folder):
    strategy = from_env()
    for saved in sorted(folder.iterdir()):
        expected = np.load(saved / "content.npz")
        for found in loaded(strategy, saved):
            assert set(found) == set(expected.files)
            for name in expected.files:
                np.testing.assert_array_equal(found[name], expected[name])
        print("loaded", saved.name, flush=True)
    target = Path(os.environ["TARGET"])
    saved = train_and_save(strategy, target)
    if strategy.is_chief:
        np.savez(target / "content.npz", **saved)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
