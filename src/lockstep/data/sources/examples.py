"""A source of examples that a program makes: a list, a generator, or any iterable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, final

from lockstep.data.examples.features import AbstractFeature
from lockstep.data.sources.base import AbstractPart, AbstractSource, Item

Example = Mapping[str, Any]
"""The values of a record, by the feature's name."""


@final
class ExamplePart(AbstractPart):
    """The examples of an iterable. The examples of a sequence can be read in any order.

    Args:
        examples: the values of each record, by feature. An iterable that is not a sequence is iterated over only once.
        num_examples: the number of examples, if the iterable has no length; None if it is unknown.
        key: the function that returns an example's key; None uses the example's number.
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
        """None: the length of values is unknown before they are encoded."""
        return

    @property
    def has_any_order(self) -> bool:
        """Whether the examples are a sequence."""
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
        name: the name of the data set.
        features: the features of each example, by name.
        classes: the names of the classes, by label number.
        origin: a text that says where the examples come from.
        version: a text that identifies the contents: equal versions mean equal examples. None if the contents cannot be
            identified.
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
    def notices(self) -> tuple[str, ...]:
        """None."""
        return ()

    @property
    def changed_time_s(self) -> None:
        """None: the version identifies the contents, so no times are needed."""
        return

    def fingerprint(self) -> str | None:
        """Returns the version."""
        return self._version

    def splits(self) -> Mapping[str, ExamplePart]:
        """See the base class."""
        return {"train": self._part}
