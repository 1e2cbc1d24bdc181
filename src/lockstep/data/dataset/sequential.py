"""Pipeline steps for elements without numbers, which are computed in order: those that Grain does not have.

The state of each iterator consists of numbers, lists and dictionaries, as JSON has them. It contains the position, not
the elements that the iterator holds: setting a state reads the needed elements again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast, final

import grain

from lockstep.data.dataset.owned_iterators import OwnedIterator, iterate_part
from lockstep.data.dataset.structure import copy_leaf, map_leaves
from lockstep.errors import InvalidInputError


@final
class Generated(grain.IterDataset):
    """The elements that a generator yields. The position is their number: resuming draws the earlier ones again.

    Args:
        make: a function that starts the generator.
    """

    def __init__(self, make: Callable[[], Iterator[Any]]) -> None:
        super().__init__()
        self._make = make

    def __iter__(self) -> grain.DatasetIterator:
        return _GeneratedIterator(self._make)


@final
class _GeneratedIterator(grain.DatasetIterator):
    def __init__(self, make: Callable[[], Iterator[Any]]) -> None:
        super().__init__()
        self._make = make
        self._iterator: Iterator[Any] | None = None
        self._num_drawn = 0

    def __next__(self) -> Any:
        if self._iterator is None:
            self._iterator = self._make()
            for number in range(self._num_drawn):
                if next(self._iterator, self) is self:
                    raise InvalidInputError(
                        "the generator ended before the position to resume at",
                        received=f"{number} elements",
                        allowed=f"at least the {self._num_drawn} that it yielded before",
                        action="make it yield the same elements each time",
                    )
        element = next(self._iterator)
        self._num_drawn += 1
        return element

    def get_state(self) -> dict[str, Any]:
        return {"num_drawn": self._num_drawn}

    def set_state(self, state: dict[str, Any]) -> None:
        self._stop()
        self._num_drawn = int(state["num_drawn"])

    def _stop(self) -> None:
        close = getattr(self._iterator, "close", None)
        if close is not None:
            close()
        self._iterator = None

    def close(self) -> None:
        if not self._closed:
            self._stop()
        super().close()

    def __str__(self) -> str:
        return "Generated"


Open = Callable[[Any, int], grain.IterDataset]
"""A function that returns the data set of an element; it also receives the element's number."""


@final
class Interleaved(grain.IterDataset):
    """The elements of several data sets in turn: the basis of ``interleave``, ``flat_map`` and ``repeat``.

    Args:
        parent: the elements from which the data sets are made.
        opened: a function that makes the data set of an element.
        cycle_length: the number of data sets that are read in turn.
        block_length: the number of consecutive elements from each data set.
        ends_when_empty: whether a data set without any element ends the whole pipeline.
    """

    def __init__(
        self,
        parent: grain.IterDataset,
        opened: Open,
        *,
        cycle_length: int = 1,
        block_length: int = 1,
        ends_when_empty: bool = False,
    ) -> None:
        super().__init__(parent)
        self._opened = opened
        self._cycle_length = cycle_length
        self._block_length = block_length
        self._ends_when_empty = ends_when_empty

    def __iter__(self) -> grain.DatasetIterator:
        return _InterleavedIterator(
            iterate_part(cast("grain.IterDataset", self._parent)),
            self._opened,
            cycle_length=self._cycle_length,
            block_length=self._block_length,
            ends_when_empty=self._ends_when_empty,
        )


@dataclass(kw_only=True)
class _Slot:
    """A data set from which elements are taken.

    Attributes:
        before: the parent's state before it yielded the element from which the data set was made.
        number: the number of that element.
        iterator: the iterator over the data set.
        is_empty: whether the iterator has yielded nothing yet.
    """

    before: dict[str, Any]
    number: int
    iterator: grain.DatasetIterator
    is_empty: bool = True


@final
class _InterleavedIterator(grain.DatasetIterator):
    """Yields elements in the order of TensorFlow's ``InterleaveDataset``."""

    def __init__(
        self,
        parent: grain.DatasetIterator,
        opened: Open,
        *,
        cycle_length: int,
        block_length: int,
        ends_when_empty: bool,
    ) -> None:
        super().__init__(parent)
        self._open = opened
        self._block_length = block_length
        self._ends_when_empty = ends_when_empty
        self._slots: list[_Slot | None] = [None] * cycle_length
        self._turn = 0
        self._num_in_block = 0
        self._num_opened = 0
        self._has_ended = False

    def __next__(self) -> Any:
        while not self._has_ended or any(self._slots):
            slot = self._slots[self._turn]
            if slot is None:
                if self._has_ended:
                    self._next_slot()
                else:
                    self._fill()
                continue
            try:
                element = next(slot.iterator)
            except StopIteration:
                slot.iterator.close()
                self._slots[self._turn] = None
                self._has_ended |= slot.is_empty and self._ends_when_empty
                self._next_slot()
                continue
            slot.is_empty = False
            self._num_in_block += 1
            if self._num_in_block == self._block_length:
                self._next_slot()
            return element
        raise StopIteration

    def _fill(self) -> None:
        before = self._parent.get_state()
        try:
            element = next(self._parent)
        except StopIteration:
            self._has_ended = True
            return
        number = self._num_opened
        self._num_opened += 1
        self._slots[self._turn] = _Slot(
            before=before, number=number, iterator=iterate_part(self._open(element, number))
        )

    def _next_slot(self) -> None:
        self._turn = (self._turn + 1) % len(self._slots)
        self._num_in_block = 0

    def get_state(self) -> dict[str, Any]:
        return {
            "parent": self._parent.get_state(),
            "turn": self._turn,
            "num_in_block": self._num_in_block,
            "num_opened": self._num_opened,
            "has_ended": self._has_ended,
            "slots": [
                None
                if slot is None
                else {
                    "before": slot.before,
                    "number": slot.number,
                    "is_empty": slot.is_empty,
                    "within": slot.iterator.get_state(),
                }
                for slot in self._slots
            ],
        }

    def set_state(self, state: dict[str, Any]) -> None:
        self._close_slots()
        for place, slot in enumerate(state["slots"]):
            if slot is None:
                continue
            self._parent.set_state(slot["before"])
            number = int(slot["number"])
            iterator = iterate_part(self._open(next(self._parent), number))
            iterator.set_state(slot["within"])
            self._slots[place] = _Slot(
                before=slot["before"], number=number, iterator=iterator, is_empty=bool(slot["is_empty"])
            )
        self._parent.set_state(state["parent"])
        self._turn, self._num_in_block = int(state["turn"]), int(state["num_in_block"])
        self._num_opened, self._has_ended = int(state["num_opened"]), bool(state["has_ended"])

    def _close_slots(self) -> None:
        for slot in self._slots:
            if slot is not None:
                slot.iterator.close()
        self._slots = [None] * len(self._slots)

    def close(self) -> None:
        if not self._closed:
            self._close_slots()
        super().close()

    def __str__(self) -> str:
        return "Interleaved"


@final
class Flattened(grain.IterDataset):
    """The parts of each element, one after the other.

    Grain's own ``FlatMapIterDataset`` yields parts again if its iterator is set to the end of the data.

    Args:
        parent: the elements that are divided.
        take: a function that returns the parts of an element.
    """

    def __init__(self, parent: grain.IterDataset, take: Callable[[Any], Sequence[Any]]) -> None:
        super().__init__(parent)
        self._take = take

    def __iter__(self) -> grain.DatasetIterator:
        return _FlattenedIterator(iterate_part(cast("grain.IterDataset", self._parent)), self._take)


@final
class _FlattenedIterator(grain.DatasetIterator):
    def __init__(self, parent: grain.DatasetIterator, take: Callable[[Any], Sequence[Any]]) -> None:
        super().__init__(parent)
        self._take = take
        self._before: dict[str, Any] = {}
        """The parent's state before it yielded the element whose parts are held."""
        self._parts: Sequence[Any] = ()
        self._next = 0

    def __next__(self) -> Any:
        while self._next == len(self._parts):
            before = self._parent.get_state()
            self._parts, self._next = self._take(next(self._parent)), 0
            self._before = before
        part = self._parts[self._next]
        self._next += 1
        return part

    def get_state(self) -> dict[str, Any]:
        if self._next == len(self._parts):
            return {"parent": self._parent.get_state(), "next": 0}
        return {"parent": self._before, "next": self._next}

    def set_state(self, state: dict[str, Any]) -> None:
        self._before, self._next = state["parent"], int(state["next"])
        self._parent.set_state(state["parent"])
        self._parts = self._take(next(self._parent)) if self._next else ()

    def __str__(self) -> str:
        return "Flattened"


@final
class ElementCache:
    """Elements that are computed once, for all iterators.

    Args:
        make: a function that makes the data set of these elements.
    """

    def __init__(self, make: Callable[[], grain.IterDataset]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._held: list[Any] = []
        self._owned: OwnedIterator | None = None
        self._is_whole = False

    def get(self, number: int) -> Any:
        """Returns a copy of the element with a number.

        Raises:
            StopIteration: If there is no such element.
        """
        with self._lock:
            while number >= len(self._held):
                if self._is_whole:
                    raise StopIteration
                if self._owned is None:
                    self._owned = OwnedIterator(self._make(), ends_last=True)
                try:
                    self._held.append(next(self._owned.iterator))
                except StopIteration:
                    self._is_whole = True
                    self._owned.end()
            return map_leaves(copy_leaf, self._held[number])


@final
class Cached(grain.IterDataset):
    """The elements of a cache.

    Args:
        cache: the cache, which all passes share.
    """

    def __init__(self, cache: ElementCache) -> None:
        super().__init__()
        self._cache = cache

    def __iter__(self) -> grain.DatasetIterator:
        return _CachedIterator(self._cache)


@final
class _CachedIterator(grain.DatasetIterator):
    def __init__(self, cache: ElementCache) -> None:
        super().__init__()
        self._cache = cache
        self._next = 0

    def __next__(self) -> Any:
        element = self._cache.get(self._next)
        self._next += 1
        return element

    def get_state(self) -> dict[str, Any]:
        return {"next": self._next}

    def set_state(self, state: dict[str, Any]) -> None:
        self._next = int(state["next"])

    def __str__(self) -> str:
        return "Cached"


@final
class SlidingWindows(grain.IterDataset):
    """Windows of elements, which may overlap; see `lockstep.data.dataset.indexed.Windows`."""

    def __init__(
        self,
        parent: grain.IterDataset,
        *,
        size: int,
        shift: int,
        stride: int,
        drop_remainder: bool,
        join: Callable[[list[Any]], Any],
    ) -> None:
        super().__init__(parent)
        self._size, self._shift, self._stride = size, shift, stride
        self._drop_remainder = drop_remainder
        self._join = join

    def __iter__(self) -> grain.DatasetIterator:
        return _WindowIterator(
            iterate_part(cast("grain.IterDataset", self._parent)),
            span=(self._size - 1) * self._stride + 1,
            shift=self._shift,
            stride=self._stride,
            drop_remainder=self._drop_remainder,
            join=self._join,
        )


@final
class _WindowIterator(grain.DatasetIterator):
    def __init__(
        self,
        parent: grain.DatasetIterator,
        *,
        span: int,
        shift: int,
        stride: int,
        drop_remainder: bool,
        join: Callable[[list[Any]], Any],
    ) -> None:
        super().__init__(parent)
        self._span, self._shift, self._stride = span, shift, stride
        self._drop_remainder = drop_remainder
        self._join = join
        self._held: list[tuple[dict[str, Any], Any]] = []
        """The elements from the first one of the next window on, each with the parent's state before it."""

    def __next__(self) -> Any:
        self._read(self._span)
        if not self._held or (self._drop_remainder and len(self._held) < self._span):
            raise StopIteration
        window = self._join([element for _, element in self._held[: self._span : self._stride]])
        self._read(self._shift)
        del self._held[: self._shift]
        return window

    def _read(self, count: int) -> None:
        while len(self._held) < count:
            before = self._parent.get_state()
            try:
                self._held.append((before, next(self._parent)))
            except StopIteration:
                return

    def get_state(self) -> dict[str, Any]:
        return {"parent": self._held[0][0] if self._held else self._parent.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        self._held = []
        self._parent.set_state(state["parent"])

    def __str__(self) -> str:
        return "SlidingWindows"
