"""A source of the 1,797 handwritten digits of scikit-learn, for use if no larger data set is available."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, final

import numpy as np

from lockstep.data.sources.base import AbstractSmallImages, Split
from lockstep.errors import MissingInputError

_BRIGHTEST: Final = 16
_SCALE: Final = 3
_NUM_PIXELS: Final = 28


@final
class Digits(AbstractSmallImages):
    """The digits. Each 8 x 8 image of 17 gray levels is enlarged three times and padded to 28 x 28 with 256 levels.

    Every fifth image is in "test": 1,438 images are in "train" and 359 in "test". The order is the data set's own.

    Raises:
        MissingInputError: scikit-learn is not installed.
    """

    def __init__(self) -> None:
        try:
            from sklearn import datasets  # optional, and slow to import
        except ModuleNotFoundError:
            raise MissingInputError(
                "the digits come with scikit-learn, which is not installed", action="run: pip install scikit-learn"
            ) from None
        found: Any = datasets.load_digits()
        enlarged = np.kron(found.images, np.ones((1, _SCALE, _SCALE)))
        margin = (_NUM_PIXELS - enlarged.shape[1]) // 2
        framed = np.pad(enlarged, ((0, 0), (margin, margin), (margin, margin)))
        self._images = np.round(framed * (255 / _BRIGHTEST)).astype(np.uint8)
        self._labels = np.asarray(found.target, np.int64)

    @property
    def name(self) -> str:
        """See the base class."""
        return "digits"

    @property
    def origin(self) -> str:
        """See the base class."""
        return "the handwritten digits of scikit-learn"

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
