"""Pipeline steps for elements with numbers: each element can be computed without the ones before it.

Each step is a data set of Grain's. Grain iterates over it, in threads if requested, and keeps the position. Steps
compute many elements per call: an order is then arithmetic on an array of numbers, and rows of an array are one copy.
"""

from __future__ import annotations

import functools
import sys
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final, final

import grain
import numpy as np
from typing_extensions import override

from lockstep.data.dataset.structure import copy_leaf, leaves_of, map_leaves, stack, take_row

ENDLESS: Final = sys.maxsize
"""The length of an endless data set, as in Grain."""

_MAX_WINDOWS: Final = 64
_MAX_PASSES: Final = 8


class AbstractIndexed(grain.MapDataset):
    """Elements by number, from 0. It is thread-safe if the functions in it are.

    Args:
        parents: the steps that it is made from.
        length: the number of elements; `ENDLESS` if there is no end.
    """

    def __init__(self, *parents: AbstractIndexed, length: int) -> None:
        super().__init__(parents)
        self._length = length
        self._threads = max((parent.num_threads for parent in parents), default=0)
        self._ahead = max((parent.num_ahead for parent in parents), default=0)

    @final
    def __len__(self) -> int:
        """Returns the number of elements."""
        return self._length

    @final
    def __getitem__(self, index: Any) -> Any:
        """Returns an element, for Grain."""
        return self.get_elements(np.array([index], np.int64))[0]

    @property
    @final
    def num_threads(self) -> int:
        """The number of threads that may compute elements; 0 for the thread that requests them."""
        return self._threads

    @property
    @final
    def num_ahead(self) -> int:
        """The number of elements that may be computed before they are requested."""
        return self._ahead

    @abstractmethod
    def get_elements(self, numbers: np.ndarray) -> list[Any]:
        """Returns the elements with these numbers.

        Args:
            numbers: the elements' numbers, int64, in any order.
        """

    def rows(self, numbers: np.ndarray) -> Any:
        """Returns the elements with these numbers as one batch; steps that hold arrays override it to be faster."""
        return stack(self.get_elements(numbers))

    @final
    def to_sequential(self) -> grain.IterDataset:
        """Returns a data set of Grain's that yields the elements in order."""
        ahead = max(self._ahead, 2 * self._threads)
        threads = max(self._threads, int(ahead > 0))
        return self.to_iter_dataset(grain.ReadOptions(num_threads=threads, prefetch_buffer_size=ahead))

    @final
    def __str__(self) -> str:
        """Returns the step's name, for Grain's messages."""
        return type(self).__name__


@final
class Rows(AbstractIndexed):
    """The rows of arrays.

    Args:
        arrays: a structure of arrays with the same number of rows; leaves may be None.
    """

    def __init__(self, arrays: Any) -> None:
        super().__init__(length=len(next(leaf for leaf in leaves_of(arrays) if leaf is not None)))
        self._arrays = arrays

    @override
    def get_elements(self, numbers: np.ndarray) -> list[Any]:
        return [take_row(self._arrays, number) for number in numbers.tolist()]

    @override
    def rows(self, numbers: np.ndarray) -> Any:
        return map_leaves(lambda leaf: None if leaf is None else leaf[numbers], self._arrays)


@final
class Computed(AbstractIndexed):
    """Values that are computed from their numbers.

    Args:
        length: the number of elements; `ENDLESS` if there is no end.
        rule: a function of an array of element numbers, int64, that returns as many values.
    """

    def __init__(self, length: int, rule: Callable[[np.ndarray], np.ndarray]) -> None:
        super().__init__(length=length)
        self._rule = rule

    @override
    def get_elements(self, numbers: np.ndarray) -> list[Any]:
        return list(self._rule(numbers))

    @override
    def rows(self, numbers: np.ndarray) -> Any:
        return self._rule(numbers)


@final
class InMemory(AbstractIndexed):
    """Elements of a sequence in memory.

    Args:
        held: the elements.
    """

    def __init__(self, held: Sequence[Any]) -> None:
        super().__init__(length=len(held))
        self._held = held

    @override
    def get_elements(self, numbers: np.ndarray) -> list[Any]:
        return [map_leaves(copy_leaf, self._held[number]) for number in numbers.tolist()]


@final
class Records(AbstractIndexed):
    """The bytes of records.

    Args:
        source: the records by number: a `lockstep.data.RecordSource`.
    """

    def __init__(self, source: Any) -> None:
        super().__init__(length=len(source))
        self._source = source

    @override
    def get_elements(self, numbers: np.ndarray) -> list[Any]:
        return list(self._source.__getitems__(numbers))


@final
class Reordered(AbstractIndexed):
    """The elements of another step in another order, or a selection of them.

    Args:
        parent: the elements.
        length: the number of elements of this step.
        index_of: a function of an array of numbers in this step that returns the numbers of the same elements in
            ``parent``.
    """

    def __init__(self, parent: AbstractIndexed, length: int, index_of: Callable[[np.ndarray], np.ndarray]) -> None:
        super().__init__(parent, length=length)
        self._elements = parent
        self._index_of = index_of

    @override
    def get_elements(self, numbers: np.ndarray) -> list[Any]:
        return self._elements.get_elements(self._index_of(numbers))

    @override
    def rows(self, numbers: np.ndarray) -> Any:
        return self._elements.rows(self._index_of(numbers))


def part(parent: AbstractIndexed, *, start: int = 0, stop: int | None = None, step: int = 1) -> AbstractIndexed:
    """Returns some of the elements, as a slice does.

    Args:
        parent: all elements.
        start: the number of the first element.
        stop: the number after the last element; None for the end.
        step: the distance from one element to the next.
    """
    end = len(parent) if stop is None else min(stop, len(parent))
    length = ENDLESS if end == ENDLESS else len(range(start, end, step))
    return Reordered(parent, length, lambda numbers: numbers * step + start)


def shuffled(parent: AbstractIndexed, *, window: int, key: Sequence[int]) -> AbstractIndexed:
    """Returns the elements shuffled within windows.

    Args:
        parent: the elements.
        window: the number of consecutive elements that are shuffled with each other.
        key: the seed of the order: whole numbers.
    """
    length = len(parent)

    @functools.lru_cache(_MAX_WINDOWS)
    def order(number: int) -> np.ndarray:
        start = number * window
        generator = np.random.default_rng((*key, number))
        return start + generator.permutation(min(window, length - start))

    def index_of(numbers: np.ndarray) -> np.ndarray:
        windows, within = np.divmod(numbers, window)
        found = np.empty_like(numbers)
        for number in np.unique(windows).tolist():
            chosen = windows == number
            found[chosen] = order(number)[within[chosen]]
        return found

    return Reordered(parent, length, index_of)


@final
class Mapped(AbstractIndexed):
    """The results of a function for each element.

    Args:
        parent: the elements.
        function: a function of one element.
        num_threads: the number of threads that compute elements; 0 for the thread that requests them.
    """

    def __init__(self, parent: AbstractIndexed, function: Callable[[Any], Any], *, num_threads: int = 0) -> None:
        super().__init__(parent, length=len(parent))
        self._elements = parent
        self._function = function
        self._threads = max(self._threads, num_threads)

    @override
    def get_elements(self, numbers: np.ndarray) -> list[Any]:
        return [self._function(element) for element in self._elements.get_elements(numbers)]


@final
class Batched(AbstractIndexed):
    """Batches of consecutive elements.

    Args:
        parent: the elements.
        size: the number of elements in a batch.
        drop_remainder: whether a last batch that would be smaller is dropped.
        join: a function that makes a batch of elements; None stacks them.
        num_threads: the number of threads that make batches; 0 for the thread that requests them.
    """

    def __init__(
        self,
        parent: AbstractIndexed,
        size: int,
        *,
        drop_remainder: bool,
        join: Callable[[Sequence[Any]], Any] | None,
        num_threads: int = 0,
    ) -> None:
        count = len(parent)
        batches = count // size if drop_remainder else -(-count // size)
        super().__init__(parent, length=ENDLESS if count == ENDLESS else batches)
        self._elements = parent
        self._size = size
        self._join = join
        self._threads = max(self._threads, num_threads)

    @override
    def get_elements(self, numbers: np.ndarray) -> list[Any]:
        return [self._batch(number * self._size) for number in numbers.tolist()]

    def _batch(self, start: int) -> Any:
        numbers = np.arange(start, min(start + self._size, len(self._elements)), dtype=np.int64)
        return self._elements.rows(numbers) if self._join is None else self._join(self._elements.get_elements(numbers))


@final
class Windows(AbstractIndexed):
    """Windows of elements, which may overlap.

    Args:
        parent: the elements.
        size: the number of elements in a window.
        shift: the distance between the first elements of two consecutive windows.
        stride: the distance between two consecutive elements of a window.
        drop_remainder: whether windows at the end that would be smaller are dropped.
        join: a function that makes a window of elements.
    """

    def __init__(
        self,
        parent: AbstractIndexed,
        *,
        size: int,
        shift: int,
        stride: int,
        drop_remainder: bool,
        join: Callable[[Sequence[Any]], Any],
    ) -> None:
        count = len(parent)
        whole = max(0, (count - (size - 1) * stride - 1) // shift + 1)
        length = ENDLESS if count == ENDLESS else whole if drop_remainder else -(-count // shift)
        super().__init__(parent, length=length)
        self._elements = parent
        self._steps = np.arange(size, dtype=np.int64) * stride
        self._shift = shift
        self._join = join

    @override
    def get_elements(self, numbers: np.ndarray) -> list[Any]:
        found: list[Any] = []
        for number in numbers.tolist():
            places = number * self._shift + self._steps
            found.append(self._join(self._elements.get_elements(places[places < len(self._elements)])))
        return found


@final
class Zipped(AbstractIndexed):
    """The combined elements of several steps at the same position; ends with the shortest.

    Args:
        parents: a structure of steps.
    """

    def __init__(self, parents: Any) -> None:
        members: list[AbstractIndexed] = leaves_of(parents)
        super().__init__(*members, length=min(map(len, members)))
        self._members = parents

    @override
    def get_elements(self, numbers: np.ndarray) -> list[Any]:
        columns = map_leaves(lambda member: member.get_elements(numbers), self._members)
        return [map_leaves(lambda column, at=at: column[at], columns) for at in range(len(numbers))]

    @override
    def rows(self, numbers: np.ndarray) -> Any:
        return map_leaves(lambda member: member.rows(numbers), self._members)


@final
class Repeated(AbstractIndexed):
    """Data sets of the same length, one after another: repetitions, each with an order of its own.

    Args:
        make: a function that returns a repetition by its number. The last few results are cached; for others it is
            called again.
        length: the total number of elements.
        size: the number of elements of each repetition.
    """

    def __init__(self, make: Callable[[int], AbstractIndexed], *, length: int, size: int) -> None:
        self._make = functools.lru_cache(_MAX_PASSES)(make)
        super().__init__(self._make(0), length=length)
        self._size = size

    @override
    def get_elements(self, numbers: np.ndarray) -> list[Any]:
        which, within = self._divide(numbers)
        found: list[Any] = [None] * len(numbers)
        for number in np.unique(which).tolist():
            places = np.flatnonzero(which == number)
            for place, element in zip(places, self._make(number).get_elements(within[places]), strict=True):
                found[place] = element
        return found

    @override
    def rows(self, numbers: np.ndarray) -> Any:
        which, within = self._divide(numbers)
        if len(numbers) and (which == which[0]).all():
            return self._make(int(which[0])).rows(within)
        return stack(self.get_elements(numbers))

    def _divide(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.divmod(numbers, self._size)


@final
class Concatenated(AbstractIndexed):
    """Two data sets, one after the other.

    Args:
        first: the first data set, which is not endless.
        second: the data set that follows.
    """

    def __init__(self, first: AbstractIndexed, second: AbstractIndexed) -> None:
        total = ENDLESS if len(second) == ENDLESS else len(first) + len(second)
        super().__init__(first, second, length=total)
        self._both = first, second

    @override
    def get_elements(self, numbers: np.ndarray) -> list[Any]:
        first, second = self._both
        found: list[Any] = [None] * len(numbers)
        for part_of, offset, chosen in (
            (first, 0, numbers < len(first)),
            (second, len(first), numbers >= len(first)),
        ):
            places = np.flatnonzero(chosen)
            for place, element in zip(places, part_of.get_elements(numbers[places] - offset), strict=True):
                found[place] = element
        return found

    @override
    def rows(self, numbers: np.ndarray) -> Any:
        first, second = self._both
        if (numbers < len(first)).all():
            return first.rows(numbers)
        if (numbers >= len(first)).all():
            return second.rows(numbers - len(first))
        return stack(self.get_elements(numbers))


@final
class Cached(AbstractIndexed):
    """Elements that keep the value that was computed first, also if several threads compute one at the same time.

    Args:
        parent: the step that computes the elements.
        cache: the computed elements by number, which all passes share.
    """

    def __init__(self, parent: AbstractIndexed, cache: dict[int, Any]) -> None:
        super().__init__(parent, length=len(parent))
        self._elements = parent
        self._cache = cache

    @override
    def get_elements(self, numbers: np.ndarray) -> list[Any]:
        missing = [number for number in numbers.tolist() if number not in self._cache]
        if missing:
            computed = self._elements.get_elements(np.array(missing, np.int64))
            for number, element in zip(missing, computed, strict=True):
                self._cache.setdefault(number, element)
        return [map_leaves(copy_leaf, self._cache[number]) for number in numbers.tolist()]


@final
class Prefetched(AbstractIndexed):
    """Elements that are computed before they are requested.

    Args:
        parent: the elements.
        num_ahead: the number of elements that are computed ahead.
    """

    def __init__(self, parent: AbstractIndexed, num_ahead: int) -> None:
        super().__init__(parent, length=len(parent))
        self._elements = parent
        self._ahead = max(self._ahead, num_ahead)

    @override
    def get_elements(self, numbers: np.ndarray) -> list[Any]:
        return self._elements.get_elements(numbers)

    @override
    def rows(self, numbers: np.ndarray) -> Any:
        return self._elements.rows(numbers)
