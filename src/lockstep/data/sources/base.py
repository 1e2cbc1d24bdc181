"""What a data set is before it is packed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np

from lockstep.data.examples.features import AbstractFeature, FixedLenFeature, RawFeature

IMAGE_FEATURES: Final[Mapping[str, AbstractFeature]] = {
    "image": RawFeature((28, 28), np.uint8),
    "label": FixedLenFeature((), np.int64),
}


@final
@dataclass(frozen=True, kw_only=True)
class Split:
    """One part of a data set of small grey images: a sized iterable of examples.

    Attributes:
        images: uint8 of shape (num_images, 28, 28), 0 is black.
        labels: integers of shape (num_images,), 0 to 9.
    """

    images: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        """How many examples there are."""
        return len(self.labels)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Gives each example's values by feature, as `IMAGE_FEATURES` describes them."""
        for image, label in zip(self.images, self.labels, strict=True):
            yield {"image": image, "label": int(label)}


class AbstractSource(ABC):
    """A data set of 28 x 28 grey images in ten classes, found and checked."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name that it is packed under."""

    @property
    @abstractmethod
    def origin(self) -> str:
        """Where it came from, in words."""

    @property
    @abstractmethod
    def classes(self) -> tuple[str, ...]:
        """What the labels mean."""

    @abstractmethod
    def splits(self) -> Mapping[str, Split]:
        """Returns "train" and "test".

        Raises:
            CorruptDataError: a file is not what it should be.
        """
