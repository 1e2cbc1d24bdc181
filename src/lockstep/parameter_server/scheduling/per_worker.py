"""Objects that each worker creates for itself, such as data, and what stands for them in the coordinator.

The coordinator only has their numbers, in the order in which its script creates them. The workers' scripts create them
in the same order. A worker creates the actual object when the first closure needs it.
"""

# JAX and Keras are only partly typed, so the checks below are off in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false

from __future__ import annotations

import inspect
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Self, final

import jax
import keras

from lockstep.errors import CorruptDataError, InvalidInputError, LockstepError
from lockstep.strategies.input import InputContext
from lockstep.upstream.jax_tracing import is_tracing

DATASET: Final = "dataset"
ITERATOR: Final = "iterator"
VALUES: Final = "values"


@final
class DataEndedError(LockstepError, StopIteration):
    """A worker's data has no more batches. In ``tf.distribute``, a closure raises ``tf.errors.OutOfRangeError``."""


@final
class PerWorkerDataset:
    """Stands for the workers' own data sets. Created by `ClusterCoordinator.create_per_worker_dataset`.

    Args:
        owner: the scheduler for whose workers it is.
        number: its index among the data sets of the owner.
    """

    def __init__(self, owner: object, number: int) -> None:
        self.owner = owner
        self.number = number
        self._num_iterators = itertools.count()
        self._living: weakref.WeakValueDictionary[int, PerWorkerIterator] = weakref.WeakValueDictionary()

    def __iter__(self) -> PerWorkerIterator:
        """Returns an object that stands for the workers' iterators over their own data: a new one for each call."""
        iterator = PerWorkerIterator(self, next(self._num_iterators))
        self._living[iterator.number] = iterator
        return iterator

    @property
    def first_iterator(self) -> int:
        """The number of the first iterator that is still referenced. Workers do not need any before it."""
        return min(self._living, default=0)


@final
class PerWorkerIterator:
    """Stands for the workers' iterators over their own data, as an argument of closures.

    Args:
        dataset: the data set.
        number: its index among the iterators over the data set.
    """

    def __init__(self, dataset: PerWorkerDataset, number: int) -> None:
        self.dataset = dataset
        self.number = number

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        """Raises an error: only workers can take batches.

        Raises:
            InvalidInputError: always.
        """
        raise InvalidInputError(
            "a batch of the workers' data was taken in the coordinator, which has none",
            allowed="next(iterator) in a function that a worker runs",
            action="pass the iterator: coordinator.schedule(step, args=(iterator,))",
        )


@final
class PerWorkerValues:
    """Stands for the workers' own values. Created by `ClusterCoordinator.create_per_worker_values`.

    Args:
        owner: the scheduler for whose workers it is.
        number: its index among the values of the owner.
    """

    def __init__(self, owner: object, number: int) -> None:
        self.owner = owner
        self.number = number


@final
class WorkerIterator:
    """An iterator over a worker's own data.

    Args:
        begin: a function that begins a pass over the data.
        process_name: the name of the worker, for messages.
    """

    def __init__(self, begin: Callable[[], Iterator[Any]], *, process_name: str) -> None:
        self._batches: Iterator[Any] | None = begin()
        self._process_name = process_name
        self._num_batches = 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        """Returns the next batch.

        Raises:
            DataEndedError: there are no more batches.
            InvalidInputError: a function is being traced. It would use the same batch in each call.
        """
        if is_tracing():
            raise InvalidInputError(
                "a batch was taken within a function that is being compiled",
                action="take the batch outside, and pass it; or schedule the compiled function itself",
            )
        try:
            if self._batches is not None:
                found = next(self._batches)
                self._num_batches += 1
                return found
        except StopIteration:
            self._batches = None  # releases everything that it reads from
        raise DataEndedError(
            f"the data of {self._process_name} have ended after {self._num_batches} batches",
            action="have them repeat without end, and schedule as many steps as are wanted",
        )


@final
@jax.tree_util.register_pytree_node_class
class TakenBatch:
    """Stands for an iterator in a compiled function: has one batch, which was taken before the function runs.

    Args:
        batch: the batch.
    """

    def __init__(self, batch: Any) -> None:
        self._batch = batch
        self._is_taken = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        """Returns the batch.

        Raises:
            InvalidInputError: the batch was already taken.
        """
        if self._is_taken:
            raise InvalidInputError(
                "a compiled function took two batches from an iterator in one call",
                allowed="one from each iterator",
                action="schedule a function that is not compiled, and have it call the compiled one with each batch; "
                "or pass two iterators",
            )
        self._is_taken = True
        return self._batch

    def tree_flatten(self) -> tuple[tuple[Any], None]:
        """Returns the batch as a child for JAX."""
        return (self._batch,), None

    @classmethod
    def tree_unflatten(cls, aux_data: None, children: Sequence[Any]) -> Self:
        """Creates an object from its batch, which is not taken yet."""
        del aux_data
        return cls(children[0])


@final
class PerWorkerObjects:
    """The objects that a worker has created for itself.

    Belongs to one thread.

    Args:
        datasets: what the script passed for each per-worker data set, in order.
        values: what the script passed for each per-worker value, in order.
        context: the position of the worker among the processes that read input.
        process_name: the name of the worker, for messages.
    """

    def __init__(
        self, *, datasets: Sequence[Any], values: Sequence[Callable[..., Any]], context: InputContext, process_name: str
    ) -> None:
        self._given = {DATASET: list(datasets), VALUES: list(values)}
        self._context = context
        self._process_name = process_name
        self._made: dict[tuple[str, int], Any] = {}
        self._begun: set[int] = set()  # data sets that are their own iterators and were begun
        self._iterators: dict[tuple[int, int], WorkerIterator] = {}

    def resolve(self, reference: list[Any]) -> Any:
        """Returns the object for a reference from the coordinator. Creates it for the first request.

        Raises:
            InvalidInputError: this worker's script has not requested such an object, or its function did not return
                data.
            CorruptDataError: this is not a reference.
            Exception: the user's own error in the function that creates the object.
        """
        match reference:
            case [str(kind), int(number)] if kind in self._given:
                return self._make(kind, number)
            case ["iterator", int(number), int(index), int(first)]:
                self._forget_iterators(number, before=first)
                key = (number, index)
                if key not in self._iterators:
                    dataset = self._data_from_the_beginning(number)
                    self._iterators[key] = WorkerIterator(lambda: _begin(dataset), process_name=self._process_name)
                return self._iterators[key]
            case _:
                raise CorruptDataError("a reference that cannot be read", received=reference)

    def _forget_iterators(self, number: int, *, before: int) -> None:
        """Releases iterators that the coordinator's script has dropped, with the data that they hold."""
        for key in [key for key in self._iterators if key[0] == number and key[1] < before]:
            del self._iterators[key]

    def _make(self, kind: str, number: int) -> Any:
        key = (kind, number)
        if key not in self._made:
            if number >= len(self._given[kind]):
                raise InvalidInputError(
                    f"{self._process_name} has no such per-worker {kind}",
                    received=number,
                    allowed=f"the {len(self._given[kind])} that its script has asked for",
                    action="run the same script in every process, and ask for them before the first closure",
                )
            given = self._given[kind][number]
            self._made[key] = self._call(given) if callable(given) else given
        return self._made[key]

    def _data_from_the_beginning(self, number: int) -> Any:
        """Returns a data set.

        If its function returns an iterator, the function is called again for each further pass.
        """
        dataset = self._make(DATASET, number)
        given = self._given[DATASET][number]
        if not isinstance(dataset, Iterator) or not callable(given):
            return dataset
        if number in self._begun:
            return self._call(given)
        self._begun.add(number)
        return dataset

    def _call(self, function: Callable[..., Any]) -> Any:
        return function(self._context) if _takes_context(function) else function()


def _takes_context(function: Callable[..., Any]) -> bool:
    """Whether a function has a required argument."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return any(one.kind in positional and one.default is inspect.Parameter.empty for one in parameters)


def _begin(dataset: Any) -> Iterator[Any]:
    if isinstance(dataset, keras.utils.PyDataset):
        num_batches = dataset.num_batches
        return map(dataset.__getitem__, itertools.count() if num_batches is None else range(num_batches))
    if not isinstance(dataset, Iterable):
        raise InvalidInputError(
            "a per-worker data set is not iterable",
            received=type(dataset).__name__,
            allowed="batches that can be iterated, or a function that returns them",
        )
    return iter(dataset)
