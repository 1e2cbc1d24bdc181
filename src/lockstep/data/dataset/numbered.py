"""Elements by number: what of a pipeline can be computed for any place in it.

All nodes are data sets of Grain's, which iterates them, in threads if asked to, and keeps the place. They are asked for
many elements at a time: an order is then arithmetic over an array of numbers, and rows of an array are one copy.
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

from lockstep.data.dataset.structure import leaves_of, map_leaves, own, stack, take_row

ENDLESS: Final = sys.maxsize
"""The length of what never ends, as Grain has it."""

_MAX_WINDOWS: Final = 64
_MAX_PASSES: Final = 8


class AbstractNumbered(grain.MapDataset):
    """Elements by their numbers, from 0. Safe in several threads, as the functions in it are.

    Args:
        parents: what it is made of.
        length: how many elements there are, `ENDLESS` where there is no end.
    """

    def __init__(self, *parents: AbstractNumbered, length: int) -> None:
        super().__init__(parents)
        self._length = length
        self._threads = max((parent.num_threads for parent in parents), default=0)
        self._ahead = max((parent.num_ahead for parent in parents), default=0)

    @final
    def __len__(self) -> int:
        """How many there are."""
        return self._length

    @final
    def __getitem__(self, index: Any) -> Any:
        """Returns an element, for Grain."""
        return self.elements(np.array([index], np.int64))[0]

    @property
    @final
    def num_threads(self) -> int:
        """How many threads may compute elements, 0 for the one that asks."""
        return self._threads

    @property
    @final
    def num_ahead(self) -> int:
        """How many elements may be computed before they are asked for."""
        return self._ahead

    @abstractmethod
    def elements(self, numbers: np.ndarray) -> list[Any]:
        """Returns elements.

        Args:
            numbers: which, int64 of any order.
        """

    def rows(self, numbers: np.ndarray) -> Any:
        """Returns elements as one batch; a node that has them side by side already has a faster way."""
        return stack(self.elements(numbers))

    @final
    def following(self) -> grain.IterDataset:
        """Returns the elements one after the other."""
        ahead = max(self._ahead, 2 * self._threads)
        threads = max(self._threads, int(ahead > 0))
        return self.to_iter_dataset(grain.ReadOptions(num_threads=threads, prefetch_buffer_size=ahead))

    @final
    def __str__(self) -> str:
        """Names the node; Grain shows it."""
        return type(self).__name__


@final
class Rows(AbstractNumbered):
    """The rows of arrays.

    Args:
        arrays: a structure, with as many rows in each leaf.
    """

    def __init__(self, arrays: Any) -> None:
        super().__init__(length=len(next(leaf for leaf in leaves_of(arrays) if leaf is not None)))
        self._arrays = arrays

    @override
    def elements(self, numbers: np.ndarray) -> list[Any]:
        return [take_row(self._arrays, number) for number in numbers.tolist()]

    @override
    def rows(self, numbers: np.ndarray) -> Any:
        return map_leaves(lambda leaf: None if leaf is None else leaf[numbers], self._arrays)


@final
class Computed(AbstractNumbered):
    """Whole numbers by a rule.

    Args:
        length: how many.
        rule: of numbers, returns as many values, int64.
    """

    def __init__(self, length: int, rule: Callable[[np.ndarray], np.ndarray]) -> None:
        super().__init__(length=length)
        self._rule = rule

    @override
    def elements(self, numbers: np.ndarray) -> list[Any]:
        return list(self._rule(numbers))

    @override
    def rows(self, numbers: np.ndarray) -> Any:
        return self._rule(numbers)


@final
class Listed(AbstractNumbered):
    """Elements that are there.

    Args:
        held: the elements.
    """

    def __init__(self, held: Sequence[Any]) -> None:
        super().__init__(length=len(held))
        self._held = held

    @override
    def elements(self, numbers: np.ndarray) -> list[Any]:
        return [map_leaves(own, self._held[number]) for number in numbers.tolist()]


@final
class Records(AbstractNumbered):
    """The bytes of records.

    Args:
        source: knows them by number: a `lockstep.data.RecordSource`.
    """

    def __init__(self, source: Any) -> None:
        super().__init__(length=len(source))
        self._source = source

    @override
    def elements(self, numbers: np.ndarray) -> list[Any]:
        return list(self._source.__getitems__(numbers))


@final
class Reordered(AbstractNumbered):
    """Another order of elements, or some of them.

    Args:
        parent: the elements.
        length: how many there are now.
        where: says where elements were, of numbers of where they are.
    """

    def __init__(self, parent: AbstractNumbered, length: int, where: Callable[[np.ndarray], np.ndarray]) -> None:
        super().__init__(parent, length=length)
        self._elements = parent
        self._where = where

    @override
    def elements(self, numbers: np.ndarray) -> list[Any]:
        return self._elements.elements(self._where(numbers))

    @override
    def rows(self, numbers: np.ndarray) -> Any:
        return self._elements.rows(self._where(numbers))


def part(parent: AbstractNumbered, *, start: int = 0, stop: int | None = None, step: int = 1) -> AbstractNumbered:
    """Returns some of the elements, as a slice does.

    Args:
        parent: all of them.
        start: the first.
        stop: behind the last, None for the end.
        step: from one to the next.
    """
    end = len(parent) if stop is None else min(stop, len(parent))
    length = ENDLESS if end == ENDLESS else len(range(start, end, step))
    return Reordered(parent, length, lambda numbers: numbers * step + start)


def shuffled(parent: AbstractNumbered, *, window: int, key: Sequence[int]) -> AbstractNumbered:
    """Returns the elements in another order, each within its window of so many.

    Args:
        parent: the elements.
        window: how many change places with each other.
        key: what the order is a function of.
    """
    length = len(parent)

    @functools.lru_cache(_MAX_WINDOWS)
    def order(number: int) -> np.ndarray:
        start = number * window
        generator = np.random.default_rng((*key, number))
        return start + generator.permutation(min(window, length - start))

    def where(numbers: np.ndarray) -> np.ndarray:
        windows, within = np.divmod(numbers, window)
        found = np.empty_like(numbers)
        for number in np.unique(windows).tolist():
            chosen = windows == number
            found[chosen] = order(number)[within[chosen]]
        return found

    return Reordered(parent, length, where)


@final
class Mapped(AbstractNumbered):
    """What a function makes of elements.

    Args:
        parent: the elements.
        function: of one.
        num_threads: in how many threads at once, 0 for the one that asks.
    """

    def __init__(self, parent: AbstractNumbered, function: Callable[[Any], Any], *, num_threads: int = 0) -> None:
        super().__init__(parent, length=len(parent))
        self._elements = parent
        self._function = function
        self._threads = max(self._threads, num_threads)

    @override
    def elements(self, numbers: np.ndarray) -> list[Any]:
        return [self._function(element) for element in self._elements.elements(numbers)]


@final
class Batched(AbstractNumbered):
    """Elements joined, so many at a time.

    Args:
        parent: the elements.
        size: how many make a batch.
        drop_remainder: whether a last batch that would be smaller is left out.
        join: makes a batch; None stacks.
        num_threads: in how many threads at once, 0 for the one that asks.
    """

    def __init__(
        self,
        parent: AbstractNumbered,
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
    def elements(self, numbers: np.ndarray) -> list[Any]:
        return [self._batch(number * self._size) for number in numbers.tolist()]

    def _batch(self, start: int) -> Any:
        numbers = np.arange(start, min(start + self._size, len(self._elements)), dtype=np.int64)
        return self._elements.rows(numbers) if self._join is None else self._join(self._elements.elements(numbers))


@final
class Windows(AbstractNumbered):
    """Runs of elements that may overlap.

    Args:
        parent: the elements.
        size: how many a window has.
        shift: how far from one window's first element to the next one's.
        stride: how far from one element of a window to the next.
        drop_remainder: whether windows at the end that would be smaller are left out.
        join: makes a window.
    """

    def __init__(
        self,
        parent: AbstractNumbered,
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
    def elements(self, numbers: np.ndarray) -> list[Any]:
        found: list[Any] = []
        for number in numbers.tolist():
            places = number * self._shift + self._steps
            found.append(self._join(self._elements.elements(places[places < len(self._elements)])))
        return found


@final
class Together(AbstractNumbered):
    """The elements of several data sets side by side, as long as all have one.

    Args:
        parents: a structure of them.
    """

    def __init__(self, parents: Any) -> None:
        members: list[AbstractNumbered] = leaves_of(parents)
        super().__init__(*members, length=min(map(len, members)))
        self._members = parents

    @override
    def elements(self, numbers: np.ndarray) -> list[Any]:
        columns = map_leaves(lambda member: member.elements(numbers), self._members)
        return [map_leaves(lambda column, at=at: column[at], columns) for at in range(len(numbers))]

    @override
    def rows(self, numbers: np.ndarray) -> Any:
        return map_leaves(lambda member: member.rows(numbers), self._members)


@final
class InTurn(AbstractNumbered):
    """Data sets of one length one after the other: repetitions, each with an order of its own.

    Args:
        make: returns one by its number. It is asked again when many others were used since.
        length: how many elements there are in all.
        size: how many each one has.
    """

    def __init__(self, make: Callable[[int], AbstractNumbered], *, length: int, size: int) -> None:
        self._make = functools.lru_cache(_MAX_PASSES)(make)
        super().__init__(self._make(0), length=length)
        self._size = size

    @override
    def elements(self, numbers: np.ndarray) -> list[Any]:
        which, within = self._divide(numbers)
        found: list[Any] = [None] * len(numbers)
        for number in np.unique(which).tolist():
            places = np.flatnonzero(which == number)
            for place, element in zip(places, self._make(number).elements(within[places]), strict=True):
                found[place] = element
        return found

    @override
    def rows(self, numbers: np.ndarray) -> Any:
        which, within = self._divide(numbers)
        if len(numbers) and (which == which[0]).all():
            return self._make(int(which[0])).rows(within)
        return stack(self.elements(numbers))

    def _divide(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.divmod(numbers, self._size)


@final
class Joined(AbstractNumbered):
    """Two data sets, one behind the other.

    Args:
        first: has an end.
        second: what follows.
    """

    def __init__(self, first: AbstractNumbered, second: AbstractNumbered) -> None:
        total = ENDLESS if len(second) == ENDLESS else len(first) + len(second)
        super().__init__(first, second, length=total)
        self._both = first, second

    @override
    def elements(self, numbers: np.ndarray) -> list[Any]:
        first, second = self._both
        found: list[Any] = [None] * len(numbers)
        for part_of, offset, chosen in (
            (first, 0, numbers < len(first)),
            (second, len(first), numbers >= len(first)),
        ):
            places = np.flatnonzero(chosen)
            for place, element in zip(places, part_of.elements(numbers[places] - offset), strict=True):
                found[place] = element
        return found

    @override
    def rows(self, numbers: np.ndarray) -> Any:
        first, second = self._both
        if (numbers < len(first)).all():
            return first.rows(numbers)
        if (numbers >= len(first)).all():
            return second.rows(numbers - len(first))
        return stack(self.elements(numbers))


@final
class Kept(AbstractNumbered):
    """Elements that are computed once.

    Args:
        parent: computes them.
        memory: where they stay, by number; shared by all passes.
    """

    def __init__(self, parent: AbstractNumbered, memory: dict[int, Any]) -> None:
        super().__init__(parent, length=len(parent))
        self._elements = parent
        self._memory = memory

    @override
    def elements(self, numbers: np.ndarray) -> list[Any]:
        missing = [number for number in numbers.tolist() if number not in self._memory]
        if missing:
            computed = self._elements.elements(np.array(missing, np.int64))
            self._memory.update(zip(missing, computed, strict=True))
        return [map_leaves(own, self._memory[number]) for number in numbers.tolist()]


@final
class Ahead(AbstractNumbered):
    """Elements that are computed before they are asked for.

    Args:
        parent: the elements.
        num_ahead: how many.
    """

    def __init__(self, parent: AbstractNumbered, num_ahead: int) -> None:
        super().__init__(parent, length=len(parent))
        self._elements = parent
        self._ahead = max(self._ahead, num_ahead)

    @override
    def elements(self, numbers: np.ndarray) -> list[Any]:
        return self._elements.elements(numbers)

    @override
    def rows(self, numbers: np.ndarray) -> Any:
        return self._elements.rows(numbers)
