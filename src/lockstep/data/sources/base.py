"""What a data set is before it is packed: parts, and in each part items that records are made of."""

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
    """What one record is made of.

    Attributes:
        number: its place in its part, from 0.
        key: what it is known by: a file's path, a row's number or one of its values. It decides the record's split.
        value: what `AbstractPart.load` makes the record's values of.
    """

    number: int
    key: str
    value: Any = None


class AbstractPart(ABC):
    """One part of a data set, such as "train": items in an order that is the same whenever they are gone through."""

    @property
    @abstractmethod
    def num_items(self) -> int | None:
        """How many items there are; None where only going through them tells."""

    @property
    @abstractmethod
    def size_bytes(self) -> int | None:
        """About how long they are together, to choose a number of shards by; None where nobody knows."""

    @property
    @abstractmethod
    def has_any_order(self) -> bool:
        """Whether `items` gives them in any order at the same cost, none of them being read for it."""

    @abstractmethod
    def keys(self) -> Iterator[str] | None:
        """Returns the keys of all items in order where they are known without reading; None elsewhere."""

    @abstractmethod
    def items(self, numbers: Iterable[int] | None = None) -> Iterator[Item]:
        """Goes through the items.

        Args:
            numbers: which, in which order; all in order by default. Only where the part `has_any_order`.

        Raises:
            CorruptDataError: the source is damaged, so that nothing after this can be read.
        """

    @abstractmethod
    def load(self, item: Item) -> Mapping[str, Any]:
        """Returns an item's values by feature; the costly part of reading. May be called from several threads.

        Raises:
            CorruptDataError: this one item is damaged.
        """

    @final
    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        """Yields each example's values by feature, in order: what `items` and `load` give."""
        return map(self.load, self.items())


@final
@dataclass(frozen=True, kw_only=True)
class Split(AbstractPart):
    """One part of a data set of small grey images, held in memory, as `IMAGE_FEATURES` describes them.

    Attributes:
        images: uint8 of shape (num_images, 28, 28), 0 is black.
        labels: integers of shape (num_images,), 0 to 9.
    """

    images: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        """How many examples there are."""
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
        """The images' numbers."""
        return map(str, range(len(self)))

    def items(self, numbers: Iterable[int] | None = None) -> Iterator[Item]:
        """See the base class."""
        for number in range(len(self)) if numbers is None else numbers:
            yield Item(number=number, key=str(number))

    def load(self, item: Item) -> Mapping[str, Any]:
        """See the base class."""
        return {"image": self.images[item.number], "label": int(self.labels[item.number])}


class AbstractSource(ABC):
    """A data set, found and ready to be read."""

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
        """What the labels mean, by their number; empty where it has none."""

    @property
    @abstractmethod
    def features(self) -> Mapping[str, AbstractFeature]:
        """What a record has, by name."""

    @property
    @abstractmethod
    def options(self) -> Mapping[str, Any]:
        """What was asked for when it was opened, for the manifest: names and JSON values."""

    @property
    @abstractmethod
    def is_sorted(self) -> bool:
        """Whether its order goes class by class, so that it is shuffled unless somebody says otherwise."""

    @property
    @abstractmethod
    def remarks(self) -> Sequence[str]:
        """What was found out when it was opened, and whoever packs it should know: a line each."""

    @property
    @abstractmethod
    def changed_time_s(self) -> float | None:
        """When the newest of its files was changed last, in seconds since the epoch.

        None where its fingerprint is of the content itself, and needs no times; infinity where a file's is not known.
        """

    @abstractmethod
    def fingerprint(self) -> str | None:
        """Returns a digest that another content or other options change; None where the content cannot be told."""

    @abstractmethod
    def splits(self) -> Mapping[str, AbstractPart]:
        """Returns its parts by name: a data set that is not divided is one part, "train".

        Raises:
            CorruptDataError: a file is not what it should be.
        """

    @final
    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        """Yields each example's values by feature, of a data set that has one part.

        Raises:
            InvalidInputError: it has several.
            CorruptDataError: a file is not what it should be.
        """
        splits = self.splits()
        if len(splits) != 1:
            raise InvalidInputError(
                f"data set {self.name} has several parts, and was gone through as one",
                received=", ".join(splits),
                action=f'go through one of them: source.splits()["{next(iter(splits), "train")}"]',
            )
        (part,) = splits.values()
        return iter(part)


class AbstractSmallImages(AbstractSource):
    """A data set by name, of small grey images that are published in a mixed order."""

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
    def remarks(self) -> Sequence[str]:
        """None."""
        return ()

    @property
    @final
    def changed_time_s(self) -> None:
        """None: the fingerprint is of the images."""
        return

    @final
    def fingerprint(self) -> str:
        """A digest of images and labels."""
        splits = self.splits().items()
        return digest_of(*(value for name, part in splits for value in (name, part.images, part.labels)))

    @abstractmethod
    def splits(self) -> Mapping[str, Split]:
        """See the base class."""


def digest_of(*parts: object) -> str:
    """Returns a digest of some values, arrays or bytes, in their order."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        content = part if isinstance(part, bytes | np.ndarray) else repr(part).encode()
        digest.update(np.ascontiguousarray(content).data if isinstance(content, np.ndarray) else content)
        digest.update(b"\0")
    return digest.hexdigest()


def newest(times_s: Iterable[float]) -> float:
    """Returns the latest of some times of change, in seconds since the epoch; infinity where one is 0: not known."""
    return max((time_s if time_s > 0 else math.inf for time_s in times_s), default=math.inf)
