"""JPEG and PNG files as instances: the pixels of the training data's reader, or one line that says what to save."""

from __future__ import annotations

import base64
import io
import json
import re
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from PIL import Image

from lockstep.data.images import decode_image, encode_image
from lockstep.errors import BodyTooLargeError, InvalidInputError, LockstepError
from lockstep.serving import images
from lockstep.serving.instances import InputSpec, read_instances, read_request
from lockstep.serving.model import LoadedModel

RANDOM = np.random.default_rng(5)
PIXELS = RANDOM.integers(0, 256, (8, 6, 3), dtype=np.uint8)
JPEG, PNG = encode_image(PIXELS, quality=80), encode_image(PIXELS, codec="png")


def b64(data: bytes) -> dict[str, str]:
    return {"b64": base64.b64encode(data).decode()}


def spec(*shape: int | None, dtype: str = "uint8", takes_pixels: bool = True) -> InputSpec:
    return InputSpec(name="image", shape=shape, dtype=dtype, takes_pixels=takes_pixels)


def read(instance: object, *specs: InputSpec) -> np.ndarray:
    return read_instances([instance], specs=specs)["image"][0]


@pytest.mark.parametrize("data", [JPEG, PNG], ids=["jpeg", "png"])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("num_channels", [None, 1, 3, 4])
@pytest.mark.parametrize("size", [(8, 6), (None, 6), (None, None)])
def test_a_file_is_what_the_trainers_reader_makes_of_it(
    data: bytes, dtype: str, num_channels: int | None, size: tuple[int | None, ...]
) -> None:
    shape = size if num_channels is None else (*size, num_channels)
    pixels = decode_image(data, num_channels=num_channels or 1)
    found = read(b64(data), spec(*shape, dtype=dtype))
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, pixels if num_channels else pixels[..., 0])


@pytest.mark.parametrize(
    "instance",
    [b64(PNG), {"image": b64(PNG)}, {"image_bytes": b64(PNG)}, {"bytes_inputs_bytes": b64(PNG)}],
    ids=["bare", "by name", "image_bytes", "any_bytes"],
)
def test_the_forms_of_ai_platforms_callers_are_taken(instance: object) -> None:
    body = json.dumps({"instances": [instance]}).encode()
    np.testing.assert_array_equal(read_instances(read_request(body), specs=[spec(8, 6, 3)])["image"][0], PIXELS)


def test_bytes_of_several_inputs_are_known_by_their_names() -> None:
    mask = InputSpec(name="mask", shape=(2,), dtype="uint8")
    arrays = read_instances([{"image_bytes": b64(PNG), "mask_bytes": b64(b"\1\2")}], specs=[spec(8, 6, 3), mask])
    np.testing.assert_array_equal(arrays["image"][0], PIXELS)
    assert arrays["mask"].tolist() == [[1, 2]]
    with pytest.raises(InvalidInputError, match="the model has no input other_bytes"):
        read_instances([{"image_bytes": b64(PNG), "other_bytes": b64(b"\1\2")}], specs=[spec(8, 6, 3), mask])
    with pytest.raises(InvalidInputError, match="the model has no input image_bytes"):
        read_instances([{"image": b64(PNG), "image_bytes": b64(PNG)}], specs=[spec(8, 6, 3)])


@pytest.mark.parametrize("beginning", [b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"])
def test_raw_pixels_that_begin_as_a_file_does_are_pixels(beginning: bytes) -> None:
    raw = beginning + bytes(8 * 6 * 3 - len(beginning))
    assert read(b64(raw), spec(8, 6, 3)).tobytes() == raw


def webp() -> bytes:
    file = io.BytesIO()
    Image.fromarray(PIXELS).save(file, "WEBP")
    return file.getvalue()


@pytest.mark.parametrize(
    ("instance", "wanted", "message"),
    [
        (b64(JPEG), spec(9, 6, 3), r"another size .*received '8 x 6'; allowed: 9 x 6; resize it as .*Resizing\(9, 6\)"),
        (
            b64(PNG),
            spec(8, 6, 3, dtype="float32", takes_pixels=False),
            r"how to convert a JPEG or PNG to float32.*Resc",
        ),
        (b64(JPEG[:-40]), spec(8, 6, 3), "damaged|cut off|truncated"),
        (
            b64(webp()),
            spec(8, 6, 3),
            r"received 'WebP, \d+ bytes'; allowed: 144 bytes, the raw .* or a JPEG or PNG file",
        ),
        (b64(b"12"), spec(None, None, 3), "received '2 bytes'; allowed: a JPEG or PNG file, or numbers"),
        (b64(PNG), InputSpec(name="image", shape=(5,), dtype="float32"), r"allowed: float32 of shape \[5\] as numbers"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused_in_one_line(instance: object, wanted: InputSpec, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as raised:
        read(instance, wanted)
    assert "\n" not in str(raised.value)
    assert "instances[0]" in str(raised.value)


def test_what_files_come_to_is_bounded_before_they_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = io.BytesIO()
    Image.new("1", (16_000, 16_000)).save(bomb, "PNG")
    monkeypatch.setattr(images, "decode_image", lambda *_, **__: pytest.fail("it was decoded"))
    with pytest.raises(BodyTooLargeError, match="16000 x 16000"):
        read(b64(bomb.getvalue()), spec(None, None, 3))
    monkeypatch.undo()
    reader = images.ImageReader(num_bytes_left=2 * PIXELS.nbytes)
    for _ in range(2):
        reader.read(PNG, shape=(8, 6, 3), dtype="uint8", place="")
    with pytest.raises(LockstepError, match="exceed the limit"):
        reader.read(PNG, shape=(8, 6, 3), dtype="uint8", place="")


def model(*layers: keras.layers.Layer, dtype: str = "float32", name: str = "image") -> keras.Sequential:
    return keras.Sequential([keras.Input((8, 6, 3), dtype=dtype, name=name), *layers, keras.layers.Flatten()])


@pytest.mark.parametrize(
    ("made", "takes"),
    [
        (lambda: model(dtype="uint8"), True),
        (lambda: model(keras.layers.Rescaling(1 / 255)), True),
        (lambda: model(keras.layers.RandomFlip(), keras.layers.Rescaling(1 / 127.5, offset=-1)), True),
        (lambda: model(keras.Sequential([keras.Input((8, 6, 3)), keras.layers.Rescaling(1 / 255)])), True),
        (lambda: model(keras.layers.Rescaling(2.0, offset=-1)), False),
        (lambda: model(keras.layers.Conv2D(2, 3)), False),
        (lambda: model(), False),
        (lambda: model(keras.layers.Conv2D(2, 3), keras.layers.Rescaling(1 / 255)), False),
    ],
)
def test_which_models_take_pixels_is_read_from_the_model(made: object, takes: bool) -> None:
    (found,) = LoadedModel(made()).inputs  # type: ignore[operator]
    assert found.takes_pixels is takes


def test_a_model_with_pixels_as_the_page_makes_one_takes_files() -> None:
    page = (Path(__file__).parents[2] / "docs" / "prediction.md").read_text("utf-8")
    (block,) = [text for text in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "with_pixels" in text]
    made: dict[str, Any] = {}
    exec(block, made)
    trained = model(keras.layers.Conv2D(2, 3))
    assert not LoadedModel(trained).inputs[0].takes_pixels
    (of_page,) = LoadedModel(made["with_pixels"](trained)).inputs
    assert of_page == spec(8, 6, 3)
    np.testing.assert_array_equal(read(b64(PNG), of_page), PIXELS)


def test_a_prediction_from_a_file_is_that_from_its_pixels() -> None:
    loaded = LoadedModel(model(keras.layers.Rescaling(1 / 255), keras.layers.Conv2D(2, 3)))
    by_file = loaded.predict(read_instances([{"image_bytes": b64(JPEG)}], specs=loaded.inputs))
    by_numbers = loaded.predict(read_instances([decode_image(JPEG).tolist()], specs=loaded.inputs))
    for name in loaded.output_names:
        np.testing.assert_array_equal(by_file[name], by_numbers[name])
