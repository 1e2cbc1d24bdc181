"""Small models, built once."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest

import lockstep  # selects Keras's backend, so it goes before Keras

assert lockstep is not None

# Keras's variables implement NumPy's __array__ by its older form; saving a model meets it.
KERAS_WARNING = "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Has the tests of this folder pass over one warning of Keras's own."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings(KERAS_WARNING))


@pytest.fixture(scope="session")
def image_model() -> keras.Model:
    """Bytes of 6x4 in, three probabilities out; its batch norm tells training from inference."""
    keras.utils.set_random_seed(7)
    model = keras.Sequential(
        [
            keras.Input((6, 4), dtype="uint8", name="image"),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Flatten(),
            keras.layers.Dense(8, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    normalization = model.layers[3]
    normalization.set_weights([np.full(8, value, "float32") for value in (1.5, 0.5, 0.25, 2.0)])
    return model


@pytest.fixture(scope="session")
def model_url(image_model: keras.Model, tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("models") / "image.keras"
    image_model.save(path)
    return str(path)
