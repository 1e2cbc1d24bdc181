"""Predictions over REST are those of ``model.predict``, for each kind of input that JSON can say."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import keras
import numpy as np
import pytest
from tests.serving.asgi import running
from tests.serving.test_predict_app import HEADERS, TOKEN

from lockstep.serving.app import AppOptions, PredictApp
from lockstep.serving.batch_policy import BatchPolicy
from lockstep.serving.exporting import Format, export_model
from lockstep.serving.opening import open_model

NUM_ROWS = 11


def numbers(dtype: str) -> keras.Model:
    given = keras.Input((6,), dtype=dtype)
    hidden = keras.layers.Dense(8, activation="gelu", dtype=dtype)(given)
    return keras.Model(given, keras.layers.Dense(3, activation="softmax", dtype=dtype)(hidden))


def images() -> keras.Model:
    image = keras.Input((8, 6, 3), dtype="uint8")
    hidden = keras.layers.Conv2D(4, 3, activation="relu")(keras.layers.Rescaling(1 / 127.5, offset=-1)(image))
    hidden = keras.layers.BatchNormalization()(keras.layers.Dropout(0.5)(hidden))
    return keras.Model(image, keras.layers.Dense(3)(keras.layers.GlobalAveragePooling2D()(hidden)))


def several() -> keras.Model:
    image, rate = keras.Input((4, 4), dtype="uint8", name="image"), keras.Input((2,), name="rate")
    ids = keras.Input((3,), dtype="int32", name="ids")
    flat = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(image))
    both = keras.layers.Concatenate()([flat, rate, keras.layers.Flatten()(keras.layers.Embedding(7, 2)(ids))])
    outputs = {"class": keras.layers.Dense(4, activation="softmax")(both), "size": keras.layers.Dense(1)(both)}
    return keras.Model({"image": image, "rate": rate, "ids": ids}, outputs)


def _rows(model: keras.Model) -> Any:
    rng = np.random.default_rng(5)

    def row(tensor: keras.KerasTensor) -> np.ndarray:
        shape, dtype = (NUM_ROWS, *tensor.shape[1:]), tensor.dtype
        if dtype == "uint8":
            return rng.integers(0, 256, shape, np.uint8)
        return rng.integers(0, 7, shape, np.int32) if dtype == "int32" else rng.normal(size=shape).astype(dtype)

    return keras.tree.map_structure(row, model.input)


def _as_lists(rows: Any) -> list[Any]:
    if isinstance(rows, dict):
        return [{name: rows[name][index].tolist() for name in rows} for index in range(NUM_ROWS)]
    return rows.tolist()


def _as_bytes(rows: np.ndarray) -> list[Any]:
    return [{"b64": base64.b64encode(row.tobytes()).decode()} for row in rows]


@pytest.mark.parametrize("suffix", [".keras", ".stablehlo"])
@pytest.mark.parametrize(
    ("make", "write"),
    [
        pytest.param(lambda: numbers("float32"), _as_lists, id="float32"),
        pytest.param(lambda: numbers("float16"), _as_lists, id="float16"),
        pytest.param(images, _as_lists, id="uint8 as numbers"),
        pytest.param(images, _as_bytes, id="uint8 as bytes"),
        pytest.param(several, _as_lists, id="several inputs and outputs"),
    ],
)
def test_predictions_are_those_of_the_model(
    tmp_path: Path, make: Callable[[], keras.Model], write: Callable[[Any], list[Any]], suffix: str
) -> None:
    keras.utils.set_random_seed(11)
    original = make()
    original.save(tmp_path / "net.keras")
    if suffix != ".keras":
        export_model(tmp_path / "net.keras", to=Format.STABLEHLO, path=tmp_path / f"net{suffix}")
    model = open_model(tmp_path / f"net{suffix}", max_batch_size=4)
    model.warm_up()
    rows = _rows(original)

    async def ask() -> Any:
        app = PredictApp(model, options=AppOptions(token=TOKEN, policy=BatchPolicy()))
        transport = httpx.ASGITransport(app)
        async with running(app), httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            response = await client.post("/predict", json={"instances": write(rows)}, headers=HEADERS)
            return response.json()["predictions"]

    found, expected = asyncio.run(ask()), original.predict(rows, verbose=0)
    if isinstance(expected, dict):
        assert [set(row) for row in found] == [set(expected)] * NUM_ROWS
        found = {name: [row[name] for row in found] for name in expected}
    else:
        found, expected = {"": found}, {"": expected}
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array.astype("float32"), rtol=1e-6, atol=1e-6)
