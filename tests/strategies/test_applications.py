"""Keras's applications of grouped and depthwise convolutions: a step over several devices is one device's."""

import keras
import numpy as np
import pytest
from tests.strategies.setups import cpus, sharded

from lockstep.strategies import MirroredStrategy, OneDeviceStrategy

NUM_CLASSES = 4
NUM_ROWS = 6
"""Over four devices: over two of them, and repeated on the others."""

APPLICATIONS = {
    "MobileNet": (keras.applications.MobileNet, 32, {"alpha": 0.25}),
    "MobileNetV2": (keras.applications.MobileNetV2, 32, {"alpha": 0.35}),
    "EfficientNetB0": (keras.applications.EfficientNetB0, 32, {}),
    "Xception": (keras.applications.Xception, 71, {}),
    "ConvNeXtTiny": (keras.applications.ConvNeXtTiny, 32, {}),
}
STRATEGIES = {"mirrored": lambda: MirroredStrategy(cpus(4)), "model_parallel": lambda: sharded(4, model_parallel=2)}
MOST = 0.05
"""Rounding grows through a hundred layers and the statistics of six rows; a gradient counted twice differs by 1."""


def train(strategy, name):
    """Returns the loss, and how one step changes each of the kernels."""
    make, size, options = APPLICATIONS[name]
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = make(weights=None, input_shape=(size, size, 3), classes=NUM_CLASSES, **options)
        model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
    before = [np.asarray(variable.value) for variable in model.trainable_variables]
    generator = np.random.default_rng(0)
    inputs = generator.uniform(0, 255, (NUM_ROWS, size, size, 3)).astype(np.float32)
    labels = generator.integers(0, NUM_CLASSES, NUM_ROWS)
    history = model.fit(inputs, labels, batch_size=NUM_ROWS, verbose=0)
    after = {variable.path: np.asarray(variable.value) for variable in model.trainable_variables}
    return history.history["loss"][0], {path: after[path] - old for path, old in zip(after, before, strict=True)}


@pytest.mark.heavy
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", APPLICATIONS)
def test_one_step(name):
    loss, updates = train(OneDeviceStrategy("cpu:0"), name)
    for make in STRATEGIES.values():
        found_loss, found = train(make(), name)
        assert found_loss == pytest.approx(loss, rel=1e-4)
        differences = {
            path: np.linalg.norm(found[path] - update) / max(np.linalg.norm(update), 1e-4)
            for path, update in updates.items()
            if path.endswith("kernel")  # what comes before a normalisation is noise
        }
        worst = max(differences, key=lambda path: differences[path])
        assert differences[worst] <= MOST, (worst, differences[worst])
