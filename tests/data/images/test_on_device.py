"""The same steps inside the model: on the devices, in the step, with the numbers of one device."""

import keras
import numpy as np
import pytest

from lockstep.data import Batches
from lockstep.strategies import MirroredStrategy, OneDeviceStrategy

IMAGES = np.random.default_rng(0).integers(0, 256, (36, 16, 16, 3), np.uint8)
LABELS = np.arange(36) % 3


def make_model():
    model = keras.Sequential(
        [
            keras.Input((16, 16, 3), dtype="uint8"),
            keras.layers.RandomFlip(seed=1),
            keras.layers.RandomRotation(0.1, seed=2),
            keras.layers.RandomCrop(12, 12, seed=3),
            keras.layers.Resizing(10, 10),
            keras.layers.Rescaling(1 / 127.5, -1),
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(3),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-2), loss)
    return model


def train(strategy):
    keras.utils.set_random_seed(5)
    with strategy.scope():
        model = make_model()
    batches = Batches(range(36), batch_size=12, transform=lambda numbers: (IMAGES[numbers], LABELS[numbers]), seed=0)
    history = model.fit(batches, epochs=2, verbose=0)
    return [*(np.asarray(variable.value) for variable in model.variables), np.array(history.history["loss"])]


@pytest.mark.heavy
@pytest.mark.parametrize("num_devices", [2, 4])
def test_steps_in_the_model_give_the_numbers_of_one_device(num_devices):
    found = train(MirroredStrategy([f"cpu:{number}" for number in range(num_devices)]))
    for one, two in zip(found, train(OneDeviceStrategy("cpu:0")), strict=True):
        assert np.linalg.norm(one - two) <= 1e-5 * np.linalg.norm(two) + 1e-7
