"""Examples that a program makes: a list, a generator, any iterable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, final

from lockstep.data.examples.features import AbstractFeature
from lockstep.data.sources.base import AbstractPart, AbstractSource, Item

Example = Mapping[str, Any]
"""A record's values by feature."""


@final
class ExamplePart(AbstractPart):
    """The examples of an iterable; a sequence's in any order.

    Args:
        examples: for each record its values by feature. An iterable that can be gone through once is gone through once.
        num_examples: how many there are, where the iterable has no length; None where nobody knows.
        key: gives each example's key; its number by default.
    """

    def __init__(
        self, examples: Iterable[Example], *, num_examples: int | None = None, key: Callable[[Example], object] | None
    ) -> None:
        self._examples = examples
        self._num_items = len(examples) if num_examples is None and isinstance(examples, Sized) else num_examples
        self._key = key

    @property
    def num_items(self) -> int | None:
        """See the base class."""
        return self._num_items

    @property
    def size_bytes(self) -> None:
        """None: values have no length until they are encoded."""
        return

    @property
    def has_any_order(self) -> bool:
        """Whether it is a sequence."""
        return isinstance(self._examples, Sequence)

    def keys(self) -> Iterator[str] | None:
        """See the base class."""
        if isinstance(self._examples, Sequence):
            return (self._key_of(number, example) for number, example in enumerate(self._examples))
        return None if self._key is not None or self._num_items is None else map(str, range(self._num_items))

    def items(self, numbers: Iterable[int] | None = None) -> Iterator[Item]:
        """See the base class."""
        if numbers is None:
            pairs = enumerate(self._examples)
        else:
            assert isinstance(self._examples, Sequence), "an iterable has one order"
            examples = self._examples
            pairs = ((number, examples[number]) for number in numbers)
        for number, example in pairs:
            yield Item(number=number, key=self._key_of(number, example), value=example)

    def load(self, item: Item) -> Mapping[str, Any]:
        """Returns the example."""
        return item.value

    def _key_of(self, number: int, example: Example) -> str:
        if self._key is None:
            return str(number)
        key = self._key(example)
        return key.decode("utf-8", "surrogateescape") if isinstance(key, bytes) else str(key)


@final
class Examples(AbstractSource):
    """A data set of examples.

    Args:
        part: the examples.
        name: what the data set is called.
        features: what each example has.
        classes: what labels mean, by their number.
        origin: where they came from, in words.
        version: names the content: the same for the same examples. None where nobody vouches for that.
    """

    def __init__(
        self,
        part: ExamplePart,
        *,
        name: str,
        features: Mapping[str, AbstractFeature],
        classes: Sequence[str] = (),
        origin: str = "",
        version: str | None = None,
    ) -> None:
        self._part = part
        self._name = name
        self._features = dict(features)
        self._classes = tuple(classes)
        self._origin = origin
        self._version = version

    @property
    def name(self) -> str:
        """See the base class."""
        return self._name

    @property
    def origin(self) -> str:
        """See the base class."""
        return self._origin

    @property
    def classes(self) -> tuple[str, ...]:
        """See the base class."""
        return self._classes

    @property
    def features(self) -> Mapping[str, AbstractFeature]:
        """See the base class."""
        return self._features

    @property
    def options(self) -> Mapping[str, Any]:
        """None."""
        return {}

    @property
    def is_sorted(self) -> bool:
        """False: examples stay in their order."""
        return False

    @property
    def remarks(self) -> tuple[str, ...]:
        """None."""
        return ()

    @property
    def changed_time_s(self) -> None:
        """None: whoever gives the version vouches for it."""
        return

    def fingerprint(self) -> str | None:
        """The version."""
        return self._version

    def splits(self) -> Mapping[str, ExamplePart]:
        """See the base class."""
        return {"train": self._part}
