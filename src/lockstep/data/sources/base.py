"""The interfaces of sources: a source has parts, and a part has items, from which records are made."""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np

from lockstep.data.examples.features import AbstractFeature, FixedLenFeature, RawFeature
from lockstep.errors import InvalidInputError

IMAGE_FEATURES: Final[Mapping[str, AbstractFeature]] = {
    "image": RawFeature((28, 28), np.uint8),
    "label": FixedLenFeature((), np.int64),
}


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """The input for one record.

    Attributes:
        number: the number of the item in its part, from 0.
        key: the item's key, such as a file's path, a row's number or one of a row's values. It decides the record's
            split.
        value: the data from which `AbstractPart.load` makes the record's values.
    """

    number: int
    key: str
    value: Any = None


class AbstractPart(ABC):
    """One part of a data set, such as "train": items in an order that is the same in every iteration."""

    @property
    @abstractmethod
    def num_items(self) -> int | None:
        """The number of items; None if only an iteration over all items would tell."""

    @property
    @abstractmethod
    def size_bytes(self) -> int | None:
        """The approximate total length of the items in bytes, for choosing a number of shards; None if unknown."""

    @property
    @abstractmethod
    def has_any_order(self) -> bool:
        """Whether `items` can yield the items in any order at the same cost, without reading them."""

    @abstractmethod
    def keys(self) -> Iterator[str] | None:
        """Returns the keys of all items in order; None if the items would have to be read for it."""

    @abstractmethod
    def items(self, numbers: Iterable[int] | None = None) -> Iterator[Item]:
        """Yields items.

        Args:
            numbers: the numbers of the items, in the order to yield them; all items in order by default. May be given
                only if `has_any_order` is True.

        Raises:
            CorruptDataError: the source is damaged, and no further item can be read.
        """

    @abstractmethod
    def load(self, item: Item) -> Mapping[str, Any]:
        """Returns an item's values by feature. It does the costly part of reading, and is called in several threads.

        Raises:
            CorruptDataError: this item is damaged. Other items may still be read.
        """

    @final
    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        """Yields the values of each item by feature, in order."""
        return map(self.load, self.items())


@final
@dataclass(frozen=True, kw_only=True)
class Split(AbstractPart):
    """One part of a data set of small grayscale images in memory, with the features `IMAGE_FEATURES`.

    Attributes:
        images: the images, uint8 of shape (num_images, 28, 28), where 0 is black.
        labels: the label of each image, integers 0 to 9 of shape (num_images,).
    """

    images: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        """Returns the number of examples."""
        return len(self.labels)

    @property
    def num_items(self) -> int:
        """See the base class."""
        return len(self)

    @property
    def size_bytes(self) -> int:
        """See the base class."""
        return self.images.nbytes

    @property
    def has_any_order(self) -> bool:
        """True."""
        return True

    def keys(self) -> Iterator[str]:
        """Returns the numbers of the images as keys."""
        return map(str, range(len(self)))

    def items(self, numbers: Iterable[int] | None = None) -> Iterator[Item]:
        """See the base class."""
        for number in range(len(self)) if numbers is None else numbers:
            yield Item(number=number, key=str(number))

    def load(self, item: Item) -> Mapping[str, Any]:
        """See the base class."""
        return {"image": self.images[item.number], "label": int(self.labels[item.number])}


class AbstractSource(ABC):
    """A data set that can be read and packed."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The default name of the packed data set."""

    @property
    @abstractmethod
    def origin(self) -> str:
        """A text that says where the data comes from."""

    @property
    @abstractmethod
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, by label number; empty if the data set has none."""

    @property
    @abstractmethod
    def features(self) -> Mapping[str, AbstractFeature]:
        """The features of a record, by name."""

    @property
    @abstractmethod
    def options(self) -> Mapping[str, Any]:
        """The options with which the source was opened, for the manifest, as JSON values by name."""

    @property
    @abstractmethod
    def is_sorted(self) -> bool:
        """Whether the items are sorted by class, so that packing shuffles them by default."""

    @property
    @abstractmethod
    def notices(self) -> Sequence[str]:
        """What was detected when the source was opened and the user should know, one line each."""

    @property
    @abstractmethod
    def changed_time_s(self) -> float | None:
        """The modification time of the newest file, in seconds since 1970 UTC.

        None if the fingerprint is computed from the contents and needs no times; infinity if a file's time is unknown.
        """

    @abstractmethod
    def fingerprint(self) -> str | None:
        """Returns a digest that changes with the contents or the options; None if the contents cannot be identified."""

    @abstractmethod
    def splits(self) -> Mapping[str, AbstractPart]:
        """Returns the parts by name. A data set without divisions is one part, "train".

        Raises:
            CorruptDataError: a file is damaged or has the wrong format.
        """

    @final
    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        """Yields the values of each item by feature, for a data set with a single part.

        Raises:
            InvalidInputError: the data set has several parts.
            CorruptDataError: a file is damaged or has the wrong format.
        """
        splits = self.splits()
        if len(splits) != 1:
            raise InvalidInputError(
                f"data set {self.name} has several parts",
                received=", ".join(splits),
                action=f'iterate over one of them: source.splits()["{next(iter(splits), "train")}"]',
            )
        (part,) = splits.values()
        return iter(part)


class AbstractSmallImages(AbstractSource):
    """A data set of small grayscale images that has a name and is published in a mixed order."""

    @property
    @final
    def features(self) -> Mapping[str, AbstractFeature]:
        """`IMAGE_FEATURES`."""
        return IMAGE_FEATURES

    @property
    @final
    def options(self) -> Mapping[str, Any]:
        """None."""
        return {}

    @property
    @final
    def is_sorted(self) -> bool:
        """False."""
        return False

    @property
    @final
    def notices(self) -> Sequence[str]:
        """None."""
        return ()

    @property
    @final
    def changed_time_s(self) -> None:
        """None: the fingerprint is computed from the images."""
        return

    @final
    def fingerprint(self) -> str:
        """Returns a digest of images and labels."""
        splits = self.splits().items()
        return digest_of(*(value for name, part in splits for value in (name, part.images, part.labels)))

    @abstractmethod
    def splits(self) -> Mapping[str, Split]:
        """See the base class."""


def digest_of(*parts: object) -> str:
    """Returns a digest of values, arrays or bytes, which depends on their order."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        content = part if isinstance(part, bytes | np.ndarray) else repr(part).encode()
        digest.update(np.ascontiguousarray(content).data if isinstance(content, np.ndarray) else content)
        digest.update(b"\0")
    return digest.hexdigest()


def latest_time_s(times_s: Iterable[float]) -> float:
    """Returns the latest of some modification times, in seconds since 1970 UTC; infinity if one is 0 (unknown)."""
    return max((time_s if time_s > 0 else math.inf for time_s in times_s), default=math.inf)
