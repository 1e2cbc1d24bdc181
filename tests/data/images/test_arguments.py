"""Every argument of the decoder and its steps is checked where it is given."""

from typing import Any

import numpy as np
import pytest

from lockstep.data import encode_example
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
from lockstep.errors import CorruptDataError, InvalidInputError

NO_NUMBERS: dict[str, Any] = {
    "None": None,
    "text": "8",
    "names": ("a", "b"),
    "truth": True,
    "nan": np.nan,
    "inf": np.inf,
}
NO_SIZES: dict[str, Any] = NO_NUMBERS | {"0": 0, "negative": -1, "float": 2.5, "both": (4, 4), "huge": 10**9}
NO_RANGES: dict[str, Any] = NO_NUMBERS | {"three": (0.1, 0.2, 0.3), "falling": (0.5, 0.1), "negative": (-5, 5)}
ARGUMENTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "Resizing.height": (lambda given: Resizing(given, 4), NO_SIZES),
    "Resizing.width": (lambda given: Resizing(4, given), NO_SIZES),
    "Resizing.crop": (lambda given: Resizing(4, 4, crop_to_aspect_ratio=given), {"text": "false", "size": (4, 4)}),
    "Resizing.pad": (lambda given: Resizing(4, 4, pad_to_aspect_ratio=given), {"text": "false", "size": (4, 4)}),
    "Resizing.fill_value": (lambda given: Resizing(4, 4, fill_value=given), NO_NUMBERS | {"part": 0.5, "large": 256}),
    "CenterCrop": (lambda given: CenterCrop(4, given), NO_SIZES),
    "RandomCrop": (lambda given: RandomCrop(given, 4), NO_SIZES),
    "RandomResizedCrop": (lambda given: RandomResizedCrop(given, 4), NO_SIZES),
    "scale": (lambda given: RandomResizedCrop(4, 4, scale=given), NO_RANGES | {"0": (0, 1), "large": (1, 2)}),
    "ratio": (lambda given: RandomResizedCrop(4, 4, ratio=given), NO_RANGES | {"0": (0, 1), "one": 1}),
    "RandomFlip": (RandomFlip, {"None": None, "number": 1, "list": ["horizontal"]}),
    "factor": (RandomRotation, NO_RANGES | {"below 0": -0.1, "large": 2}),
    "fill_mode": (lambda given: RandomRotation(0.1, fill_mode=given), {"None": None, "number": 1, "list": ["wrap"]}),
    "fill_value": (lambda given: RandomRotation(0.1, fill_value=given), NO_NUMBERS),
    "Rescaling.scale": (Rescaling, NO_NUMBERS | {"rows": [[1], [2, 3]]}),
    "Rescaling.offset": (lambda given: Rescaling(1, given), NO_NUMBERS | {"rows": [[1, 2, 3]]}),
    "mean": (lambda given: Normalization(given, 1), NO_NUMBERS),
    "variance": (lambda given: Normalization(1, given), NO_NUMBERS | {"negative": -1}),
    "num_channels": (lambda given: ImageDecoder(num_channels=given), NO_NUMBERS | {"two": 2, "float": 3.0}),
    "dtype": (lambda given: ImageDecoder(dtype=given), {"misspelt": "integer", "list": [1], "object": object}),
    "images": (ImageDecoder(), {"None": None, "bytes": b"", "text": "abc", "a gap": [None], "texts": ["a"]}),
    "random": (lambda given: ImageDecoder(RandomFlip())([b""], given), {"seed": 5}),
}


@pytest.mark.parametrize(
    ("make", "given"),
    [
        pytest.param(make, given, id=f"{argument}: {of}")
        for argument, (make, mistakes) in ARGUMENTS.items()
        for of, given in mistakes.items()
    ],
)
def test_every_argument_is_checked(make: Any, given: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"; received .*; allowed: "):
        make(given)


def test_numbers_of_numpy_and_a_border_as_keras_writes_it_are_taken() -> None:
    size: Any = np.int64(2)
    fill_value: Any = 7.0
    step = Resizing(size, 4, pad_to_aspect_ratio=True, fill_value=fill_value)
    assert step.apply(np.zeros((2, 2, 1), np.uint8), np.empty(0))[0].tolist() == [[7], [0], [0], [7]]


def test_a_record_that_is_not_parsed_is_named_with_its_place_in_the_batch() -> None:
    image = encode_image(np.zeros((4, 4, 3), np.uint8))
    message = (
        r"image 1 of the batch: not an image .*'a tf.train.Example with image'; allowed: .*; parse the record first"
    )
    with pytest.raises(CorruptDataError, match=message):
        ImageDecoder(Resizing(4, 4))([image, encode_example({"image": image})])
