"""What is done to images on the host, and that the device does the same by Keras's layers."""

import pickle
from typing import Any

import jax
import keras
import numpy as np
import pytest
from tests.data.images.photo import photo

from lockstep.data.images import (
    CenterCrop,
    ImageDecoder,
    Normalization,
    RandomCrop,
    RandomFlip,
    RandomResizedCrop,
    RandomRotation,
    Rescaling,
    Resizing,
    encode_image,
)
from lockstep.data.images.array_pool import ArrayPool
from lockstep.data.reading.randomness import RecordRandom
from lockstep.errors import CorruptDataError, InvalidInputError

PHOTO: np.ndarray = photo(120, 160, seed=1)
NO_DRAWS = np.empty(0)


def draws(*values: float) -> np.ndarray:
    return np.array(values)


def smooth(height: int, width: int) -> np.ndarray:
    down, across = np.mgrid[0:height, 0:width]
    return np.stack([down * 255 / height, across * 255 / width, (down + across) * 127 / (height + width)], -1).astype(
        np.uint8
    )


@pytest.mark.parametrize(
    "options", [{}, {"crop_to_aspect_ratio": True}, {"pad_to_aspect_ratio": True}], ids=["stretch", "crop", "pad"]
)
@pytest.mark.parametrize("size", [(60, 80), (80, 60), (50, 50)])
def test_resizing_is_that_of_keras(size: tuple[int, int], options: dict[str, Any]) -> None:
    image = smooth(120, 160)
    ours = Resizing(*size, **options).apply(image, NO_DRAWS)
    layer = keras.layers.Resizing(*size, **options, antialias=True, dtype="float32")
    theirs = np.asarray(layer(image[np.newaxis].astype(np.float32)))[0]
    assert ours.shape == theirs.shape
    # Where a border begins may differ by a pixel: rounding.
    assert np.quantile(np.abs(ours - theirs), 0.9) <= 3.5


def test_the_middle() -> None:
    np.testing.assert_array_equal(CenterCrop(20, 40).apply(PHOTO, NO_DRAWS), PHOTO[50:70, 60:100])
    theirs = np.asarray(keras.layers.CenterCrop(20, 40)(PHOTO[np.newaxis].astype(np.float32)))[0]
    np.testing.assert_array_equal(CenterCrop(20, 40).apply(PHOTO, NO_DRAWS), theirs)
    assert CenterCrop(240, 240).apply(PHOTO, NO_DRAWS).shape == (240, 240, 3)


def test_random_crops_reach_everywhere() -> None:
    step = RandomCrop(119, 158)
    corners = {
        (down, across): PHOTO[down : down + 119, across : across + 158] for down in (0, 1) for across in (0, 1, 2)
    }
    for down, first in ((0, 0.1), (1, 0.9)):
        for across, second in ((0, 0.2), (1, 0.5), (2, 0.99)):
            np.testing.assert_array_equal(step.apply(PHOTO, draws(first, second)), corners[down, across])
    assert step.apply(PHOTO[:30, :20], draws(0.5, 0.5)).shape == (119, 158, 3)


@pytest.mark.parametrize("first", [0.0, 0.3, 0.999])
@pytest.mark.parametrize("second", [0.0, 0.5, 0.999])
def test_random_parts_stay_within_the_image(first: float, second: float) -> None:
    step = RandomResizedCrop(32, 48, scale=(0.1, 1.0), ratio=(0.5, 2.0))
    for third in (0.0, 0.999):
        top, left, bottom, right = step._box(120, 160, draws(first, second, third, third))
        assert 0 <= top < bottom <= 120 + 1e-9
        assert 0 <= left < right <= 160 + 1e-9
        area = (bottom - top) * (right - left) / (120 * 160)
        assert area <= 0.1 + 0.9 * first + 1e-9
        if second == 0.5:  # a square fits, up to its own area
            assert area == pytest.approx(min(0.1 + 0.9 * first, 120 / 160), rel=0.4)
        assert step.apply(PHOTO, draws(first, second, third, third)).shape == (32, 48, 3)


def test_flips() -> None:
    both = RandomFlip("horizontal_and_vertical")
    np.testing.assert_array_equal(both.apply(PHOTO, draws(0.4, 0.6)), PHOTO[:, ::-1])
    np.testing.assert_array_equal(both.apply(PHOTO, draws(0.6, 0.4)), PHOTO[::-1])
    np.testing.assert_array_equal(both.apply(PHOTO, draws(0.4, 0.4)), PHOTO[::-1, ::-1])
    np.testing.assert_array_equal(RandomFlip("vertical").apply(PHOTO, draws(0.4, 0.6)), PHOTO)
    np.testing.assert_array_equal(RandomFlip().apply(PHOTO, draws(0.6, 0.4)), PHOTO)


def test_rotations() -> None:
    image = smooth(61, 61)
    np.testing.assert_array_equal(RandomRotation((0.25, 0.25)).apply(image, draws(0.3)), np.rot90(image))
    np.testing.assert_array_equal(RandomRotation(0.1).apply(image, draws(0.5)), image)
    dark = RandomRotation((0.125, 0.125), fill_mode="constant", fill_value=9).apply(image + 20, draws(0.0))
    assert (dark[0, 0] == 9).all()
    for mode in ("reflect", "nearest", "wrap"):
        turned = RandomRotation((0.05, 0.05), fill_mode=mode).apply(np.full((40, 60, 3), 77, np.uint8), draws(0.0))
        np.testing.assert_array_equal(turned, np.full((40, 60, 3), 77))
    middle = slice(20, 41)
    layer = keras.layers.RandomRotation((0.05, 0.05), interpolation="bilinear", seed=1)
    theirs = np.asarray(layer(image[np.newaxis].astype(np.float32), training=True))[0]
    ours = RandomRotation((0.05, 0.05)).apply(image, draws(0.0))
    assert np.abs(ours[middle, middle] - theirs[middle, middle]).max() <= 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Resizing(0, 3), "the height of Resizing; received 0"),
        (lambda: Resizing(3, 3, crop_to_aspect_ratio=True, pad_to_aspect_ratio=True), "both crop and pad"),
        (lambda: Resizing(3, 3, fill_value=256), "the fill_value of Resizing; received 256"),
        (lambda: RandomFlip("sideways"), "the mode of RandomFlip; received 'sideways'; allowed: horizontal, vertical"),
        (lambda: RandomRotation(1.5), "the factor of RandomRotation"),
        (lambda: RandomRotation(0.1, fill_mode="mirror"), "the fill_mode of RandomRotation"),
        (lambda: RandomResizedCrop(3, 3, scale=(0, 1)), "the scale of RandomResizedCrop"),
        (lambda: RandomResizedCrop(3, 3, ratio=(2, 1)), "the ratio of RandomResizedCrop"),
        (lambda: Normalization(1, 0), "the variance of Normalization"),
        (lambda: ImageDecoder([RandomFlip()]), "not a step of an ImageDecoder; received 'builtins.list'"),
        (lambda: ImageDecoder(keras.layers.RandomFlip()), "received 'keras.*RandomFlip'; .*layers of Keras go into"),
        (lambda: ImageDecoder(Rescaling(2), RandomFlip()), "the order of an ImageDecoder's steps"),
        (lambda: ImageDecoder(Rescaling(2), dtype=np.uint8), "the dtype of images; received 'uint8'"),
        (lambda: ImageDecoder(dtype=np.int32), "the dtype of images; received 'int32'"),
        (lambda: ImageDecoder(Rescaling((1, 2))), "the scale or offset of images"),
    ],
)
def test_what_makes_no_sense(make: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        make()


def names(steps: list[Any]) -> str:
    return "-".join(type(step).__name__ for step in steps) or "none"


FILES = [encode_image(np.roll(PHOTO, shift, axis=1)) for shift in range(0, 80, 10)]
RANDOM = RecordRandom(range(8), seed=3, epoch=0)


def step_by_step(steps: list[Any], data: bytes, numbers: np.ndarray) -> np.ndarray:
    """Does the steps one after the other, and nothing clever."""
    (image,) = ImageDecoder()([data])
    at = 0
    for step in steps:
        if isinstance(step, Rescaling | Normalization):
            image = image * step.scale + step.offset
        else:
            image = step.apply(image, numbers[at : at + step.num_draws])
            at += step.num_draws
    return image


@pytest.mark.parametrize(
    "steps",
    [
        [],
        [RandomFlip()],
        [RandomCrop(70, 90), RandomFlip("horizontal_and_vertical")],
        [RandomFlip(), RandomCrop(70, 90), RandomFlip()],
        [RandomRotation(0.1), RandomFlip(), CenterCrop(64, 64)],
        [RandomFlip(), Rescaling(1 / 127.5, -1)],
        [RandomCrop(70, 90), RandomFlip(), Normalization((120, 110, 100), (50**2, 60**2, 70**2))],
        [RandomFlip(), Rescaling(1 / 255), Normalization(0.5, 0.25)],
    ],
    ids=names,
)
def test_a_batch_is_what_the_steps_say(steps: list[Any]) -> None:
    batch = ImageDecoder(*steps)(FILES, RANDOM)
    numbers = RANDOM.uniform(sum(getattr(step, "num_draws", 0) for step in steps))
    for row, data in enumerate(FILES):
        wanted = step_by_step(steps, data, numbers[row])
        np.testing.assert_allclose(batch[row], wanted, rtol=1e-5, atol=1e-5 if batch.dtype != np.uint8 else 0)
    assert batch.flags.c_contiguous
    assert batch.ctypes.data % 64 == 0
    restored = pickle.loads(pickle.dumps(ImageDecoder(*steps)))
    np.testing.assert_array_equal(restored(FILES, RANDOM), batch)


@pytest.mark.parametrize("steps", [[Resizing(32, 40)], [RandomFlip(), RandomResizedCrop(24, 24)]], ids=names)
def test_small_results_of_large_images_are_decoded_small(steps: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from lockstep.data.images import decoder

    found: list[tuple[int, ...]] = []
    decode = decoder.decode_image

    def noted(data: bytes, **options: Any) -> np.ndarray:
        image = decode(data, **options)
        found.append(image.shape)
        return image

    monkeypatch.setattr(decoder, "decode_image", noted)
    batch = ImageDecoder(*steps)(FILES, RANDOM)
    assert any(shape[0] < 120 for shape in found)
    numbers = RANDOM.uniform(sum(step.num_draws for step in steps))
    for row, data in enumerate(FILES):
        assert np.abs(batch[row].astype(int) - step_by_step(steps, data, numbers[row])).mean() < 5


def test_other_numbers_of_channels_and_dtypes() -> None:
    assert ImageDecoder(num_channels=1)(FILES).shape == (8, 120, 160, 1)
    whole = ImageDecoder(RandomFlip(), num_channels=4)(FILES, RANDOM)
    assert (whole[..., 3] == 255).all()
    assert ImageDecoder(dtype=np.float16)(FILES).dtype == np.float16
    assert ImageDecoder(Rescaling(1 / 255), dtype=np.float64)(FILES).dtype == np.float64
    assert ImageDecoder()([]).shape == (0, 0, 0, 3)


def test_an_image_that_is_none_is_named() -> None:
    with pytest.raises(CorruptDataError, match="image 2 of the batch: not an image that can be read"):
        ImageDecoder()([*FILES[:2], b"nothing"])


def test_images_of_different_sizes() -> None:
    with pytest.raises(InvalidInputError, match="different sizes; received '60 x 160 after 120 x 160'"):
        ImageDecoder()([FILES[0], encode_image(PHOTO[:60])])
    assert ImageDecoder(Resizing(50, 50))([FILES[0], encode_image(PHOTO[:60])]).shape == (2, 50, 50, 3)


def test_random_steps_want_numbers() -> None:
    with pytest.raises(InvalidInputError, match="give Batches a random_transform"):
        ImageDecoder(RandomFlip())(FILES)
    with pytest.raises(InvalidInputError, match="the random numbers' records; received 8; allowed: 2"):
        ImageDecoder(RandomFlip())(FILES[:2], RANDOM)


def test_memory_is_used_again_once_nobody_has_it() -> None:
    pool = ArrayPool()
    first = pool.empty((4, 5), np.float32)
    first[...] = 1
    address = first.ctypes.data
    part = first[1:3, ::2]
    del first
    other = pool.empty((4, 5), np.float32)
    other[...] = 2
    assert other.ctypes.data != address  # a view of the first is still there
    assert (part == 1).all()
    del part
    assert pool.empty((10, 2), np.float32).ctypes.data == address
    assert pool.empty((3, 3), np.uint8).shape == (3, 3)


def test_half_precision_is_rounded_once() -> None:
    data = encode_image(np.arange(192, dtype=np.uint8).reshape(8, 8, 3), codec="png")
    steps = Normalization((123.0, 117.0, 104.0), (58.0**2, 57.0**2, 57.5**2))
    exact = ImageDecoder(steps)([data])
    np.testing.assert_array_equal(ImageDecoder(steps, dtype=np.float16)([data]), exact.astype(np.float16))


@pytest.mark.parametrize("donated", [False, True])
def test_memory_that_jax_took_as_it_is_is_not_used_again_meanwhile(donated: bool) -> None:
    pool = ArrayPool()
    double = jax.jit(lambda x: x * 2, donate_argnums=0 if donated else ())
    results: list[Any] = []
    for number in range(30):
        array = pool.empty((300, 700), np.float32)
        array[:] = number
        on_device = jax.device_put(array)
        results.append(double(on_device) if number % 2 else on_device)
        del array, on_device
    for number, result in enumerate(results):  # what was dropped while it was being read, or is still held
        assert (np.asarray(result) == number * (1 + number % 2)).all()
