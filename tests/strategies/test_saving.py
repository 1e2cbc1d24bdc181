"""A model that cannot be saved is said to be so when its training begins."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import pytest

from lockstep.errors import ModelError
from lockstep.strategies import MirroredStrategy, OneDeviceStrategy
from lockstep.strategies.saving import saving_error
from lockstep.training import save_model

pytestmark = pytest.mark.filterwarnings(
    # Keras's variables implement NumPy's __array__ by its older form; saving a model meets it.
    "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"
)

X, Y = np.ones((4, 3), "float32"), np.ones((4, 2), "float32")
LINE = "class Silent has no get_config() that describes its arguments"
ANSWER = "@keras.saving.register_keras_serializable() above class Silent, and into it def get_config"


class Silent(keras.layers.Layer):
    """Takes what is no plain value, and does not say so."""

    def __init__(self, dense: keras.layers.Layer) -> None:
        super().__init__()
        self.dense = dense

    def call(self, x: object) -> object:
        return self.dense(x)


@keras.saving.register_keras_serializable(package="test_saving")
class Speaking(keras.Model):
    def __init__(self, dense: keras.layers.Layer) -> None:
        super().__init__()
        self.dense = dense

    def call(self, x: object) -> object:
        return self.dense(x)

    def get_config(self) -> dict[str, object]:
        return {"dense": keras.saving.serialize_keras_object(self.dense)}


class Subclassed(keras.Model):
    """Holds such a layer; its own arguments are plain."""

    def __init__(self) -> None:
        super().__init__()
        self.silent = Silent(keras.layers.Dense(2))

    def call(self, x: object) -> object:
        return self.silent(x)


def compiled(model: keras.Model) -> keras.Model:
    model.compile("sgd", "mse")
    return model


def silent() -> keras.Model:
    return compiled(keras.Sequential([keras.Input((3,)), Silent(keras.layers.Dense(2))]))


def test_it_is_said_once_when_fit_begins(caplog: pytest.LogCaptureFixture) -> None:
    with MirroredStrategy().scope():
        model = silent()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            model.fit(X, Y, verbose=0)
    (record,) = caplog.records
    assert LINE in record.getMessage()
    assert ANSWER in record.getMessage()
    assert "\n" not in record.getMessage()


class Holding(keras.layers.Layer):
    """Says how it is made again, by a value that no file can hold."""

    def __init__(self, value: object, **options: object) -> None:
        super().__init__(**options)
        self.value = value

    def call(self, x: object) -> object:
        return x

    def get_config(self) -> dict[str, object]:
        return {**super().get_config(), "value": self.value}


@pytest.mark.parametrize("value", [object(), Path("x"), {1, 2}], ids=lambda value: type(value).__name__)
def test_a_configuration_that_no_file_can_hold_is_said_when_fit_begins(
    value: object, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    with MirroredStrategy().scope():
        model = compiled(keras.Sequential([keras.Input((3,)), Holding(value), keras.layers.Dense(2)]))
    with caplog.at_level(logging.WARNING):
        model.fit(X, Y, verbose=0)
    (record,) = caplog.records
    assert "a get_config() in it gives a " in record.getMessage()
    assert "\n" not in record.getMessage()
    with pytest.raises(ModelError, match="which Keras cannot write"):
        save_model(model, tmp_path)


@pytest.mark.parametrize("strategy", [OneDeviceStrategy, MirroredStrategy])
def test_a_callback_that_would_save_it_is_refused_before_the_first_step(
    strategy: Callable[[], OneDeviceStrategy | MirroredStrategy], tmp_path: Path
) -> None:
    with strategy().scope():
        model = silent()
    saves = keras.callbacks.ModelCheckpoint(tmp_path / "m.keras")
    with pytest.raises(ModelError, match=re.escape(LINE)):
        model.fit(X, Y, verbose=0, callbacks=[saves])
    assert int(model.optimizer.iterations) == 0
    model.fit(
        X, Y, verbose=0, callbacks=keras.callbacks.ModelCheckpoint(tmp_path / "m.weights.h5", save_weights_only=True)
    )
    assert (tmp_path / "m.weights.h5").exists()


def test_saving_says_the_same(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=re.escape(LINE)):
        save_model(silent(), tmp_path / "m.keras")


@pytest.mark.parametrize("make", [lambda: Speaking(keras.layers.Dense(2)), Subclassed])
def test_nothing_is_said_of_a_model_that_can_be_saved(
    make: object, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    with MirroredStrategy().scope():
        model = compiled(make())  # type: ignore[operator]
    with caplog.at_level(logging.WARNING):
        model.fit(X, Y, verbose=0)
    assert caplog.records == []
    assert saving_error(model) is None
    save_model(model, tmp_path / "m.keras")
