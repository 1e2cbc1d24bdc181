"""A source of 1,797 handwritten digits, which come with Lockstep: data that need no download.

They are the test set of *Optical Recognition of Handwritten Digits* by E. Alpaydin and C. Kaynak (UCI Machine Learning
Repository, 1998, https://doi.org/10.24432/C50P49), licensed under CC BY 4.0. scikit-learn's ``load_digits`` has the
same images in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Final, final

import numpy as np

from lockstep.data.sources.base import AbstractSmallImages, Split

_BRIGHTEST: Final = 16
_SCALE: Final = 3
_NUM_PIXELS: Final = 28


@final
class Digits(AbstractSmallImages):
    """The digits. Each 8 x 8 image of 17 gray levels is enlarged three times and padded to 28 x 28 with 256 levels.

    Every fifth image is in "test": 1,438 images are in "train" and 359 in "test". The order is the data set's own.
    """

    def __init__(self) -> None:
        file = resources.files("lockstep.data.sources") / "digits.npz"
        with file.open("rb") as opened, np.load(opened, allow_pickle=False) as arrays:
            images, self._labels = arrays["images"], arrays["labels"].astype(np.int64)
        enlarged = np.kron(images, np.ones((1, _SCALE, _SCALE)))
        margin = (_NUM_PIXELS - enlarged.shape[1]) // 2
        framed = np.pad(enlarged, ((0, 0), (margin, margin), (margin, margin)))
        self._images = np.round(framed * (255 / _BRIGHTEST)).astype(np.uint8)

    @property
    def name(self) -> str:
        """See the base class."""
        return "digits"

    @property
    def origin(self) -> str:
        """See the base class."""
        return "the handwritten digits that come with Lockstep"

    @property
    def classes(self) -> tuple[str, ...]:
        """See the base class."""
        return tuple("0123456789")

    def splits(self) -> Mapping[str, Split]:
        """See the base class."""
        tests = np.arange(len(self._labels)) % 5 == 4
        return {
            "train": Split(images=self._images[~tests], labels=self._labels[~tests]),
            "test": Split(images=self._images[tests], labels=self._labels[tests]),
        }
