"""Writes the models with random weights, and what they predict: ``python -m serving.models FOLDER``.

Layers have names, by which the rivals find the weights.
"""

from __future__ import annotations

import base64
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

from lockstep.data.images import decode_image
from serving.cases import Case

# isort: split
import keras  # after lockstep, which has it run on JAX
from keras import layers

NUM_SAMPLES: Final = 8
LEAST_SPREAD: Final = 0.05
"""How much a class's probability differs at least among the samples; else a comparison to 1e-4 would show nothing."""


def make_tabular() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((32,)),
            layers.Dense(64, activation="relu", name="dense1"),
            layers.Dense(64, activation="relu", name="dense2"),
            layers.Dense(4, activation="softmax", name="head"),
        ]
    )


def make_fashion_mnist() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu", name="conv1"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu", name="conv2"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(0.2),
            layers.Dense(128, activation="relu", name="dense1"),
            layers.Dense(10, activation="softmax", name="head"),
        ]
    )


def make_mobilenet() -> keras.Model:
    pixels = keras.Input((224, 224, 3), dtype="uint8", name="image")
    scaled = layers.Rescaling(1 / 127.5, offset=-1)(pixels)
    return keras.applications.MobileNet(input_tensor=scaled, weights=None, alpha=0.25, classes=10)


def numbers(rng: np.random.Generator, *shape: int) -> tuple[list[Any], np.ndarray]:
    """Returns instances of four decimals, and the same as an array."""
    values = np.round(rng.random((NUM_SAMPLES, *shape)), 4)
    return values.tolist(), values.astype(np.float32)


def photos(rng: np.random.Generator) -> tuple[list[Any], np.ndarray]:
    """Returns JPEG files of smooth pictures, and their pixels."""
    instances, arrays = [], []
    for _ in range(NUM_SAMPLES):
        coarse = Image.fromarray(rng.integers(0, 256, (14, 14, 3), np.uint8))
        contents = io.BytesIO()
        coarse.resize((224, 224), Image.Resampling.BICUBIC).save(contents, "JPEG", quality=90)
        instances.append({"b64": base64.b64encode(contents.getvalue()).decode()})
        arrays.append(decode_image(contents.getvalue()))
    return instances, np.stack(arrays)


MAKERS: Final[dict[str, tuple[Callable[[], keras.Model], Callable[..., tuple[list[Any], np.ndarray]]]]] = {
    "tabular": (make_tabular, lambda rng: numbers(rng, 32)),
    "fashion_mnist": (make_fashion_mnist, lambda rng: numbers(rng, 28, 28, 1)),
    "mobilenet": (make_mobilenet, photos),
}


def set_weights(model: keras.Model, rng: np.random.Generator) -> None:
    """Gives each weight random values, of a size that keeps what passes through the layers neither small nor large."""
    for variable in model.weights:
        shape, kind = variable.shape, variable.path.rpartition("/")[2]
        noise = rng.standard_normal(shape)
        if kind == "kernel":
            num_inputs = np.prod(shape[:2] if "conv_dw" in variable.path else shape[:-1])
            variable.assign(noise * np.sqrt(2 / num_inputs))
        elif kind in ("gamma", "moving_variance"):
            variable.assign(1 + 0.1 * noise.clip(-3, 3))
        else:
            variable.assign(0.1 * noise)


def spread_predictions(model: keras.Model, arrays: np.ndarray) -> np.ndarray:
    """Scales and moves the last layer until predictions differ from sample to sample; returns the predictions."""
    kernel, bias = model.weights[-2:]
    logits = np.log(model.predict(arrays, verbose=0))
    logits -= logits.mean(axis=1, keepdims=True)
    scale = 1 / logits.std(axis=0).mean()
    bias.assign((np.asarray(bias) - logits.mean(axis=0)) * scale)
    kernel.assign(np.asarray(kernel) * scale)
    predictions = model.predict(arrays, verbose=0)
    assert np.ptp(predictions, axis=0).max() > LEAST_SPREAD
    return predictions


def main() -> None:
    for number, (name, (make, sample)) in enumerate(MAKERS.items()):
        rng = np.random.default_rng(number)
        case = Case(name=name, folder=Path(sys.argv[1]))
        model = make()
        instances, arrays = sample(rng)
        set_weights(model, rng)
        predictions = spread_predictions(model, arrays)
        model.save(case.model_path)
        weights = {"/".join(variable.path.split("/")[-2:]): np.asarray(variable) for variable in model.weights}
        np.savez(case.weights_path, **weights)
        case.write_samples(instances, predictions.tolist())


if __name__ == "__main__":
    main()
