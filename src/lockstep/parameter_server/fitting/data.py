"""A worker's batches, from data that is read by batch number, or in the order in which it comes."""

# JAX and Keras are only partly typed, so the checks below are off in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false

from __future__ import annotations

import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, final

import keras
import numpy as np
from typing_extensions import override

from lockstep.errors import InvalidInputError
from lockstep.strategies.data_arguments import ClassWeights, check_arguments, comes_in_batches
from lockstep.strategies.input import GlobalBatches, InputContext, ResumableData
from lockstep.upstream.keras_data import can_convert_arrays, class_weight_to_sample_weights, get_data_adapter

DEFAULT_BATCH_SIZE: Final = 32
_ENDED: Final = object()


@final
class DatasetCreator:
    """Data for ``fit`` that each worker creates for itself, named as in ``tf.keras.utils.experimental``.

    Args:
        dataset_fn: a function that takes the worker's `lockstep.strategies.InputContext`, and returns data as ``fit``
            takes it as ``x``. A batch of it is the batch of one worker's step. The coordinator also calls the function,
            for one batch, to build the model.
    """

    def __init__(self, dataset_fn: Callable[[InputContext], Any]) -> None:
        if not callable(dataset_fn):
            raise InvalidInputError(
                "DatasetCreator's dataset_fn", received=type(dataset_fn).__name__, allowed="a function of InputContext"
            )
        self.dataset_fn = dataset_fn


class AbstractBatches(ABC):
    """The source of the batches of a worker's steps.

    Not thread-safe.
    """

    @abstractmethod
    def batch(self, number: int, *, seed: int) -> Any:
        """Returns a batch in the form that Keras's steps take.

        Args:
            number: the index of the batch in the training, over all epochs and workers. It only matters for data that
                can be read by batch number.
            seed: the seed of the order, the same for all workers.

        Raises:
            InvalidInputError: the data has ended.
        """

    @final
    def example(self) -> Any:
        """Returns some batch, to build a model with it. This does not consume a batch.

        Raises:
            InvalidInputError: the batch has values that are not numbers.
        """
        found = self._example()
        for leaf in keras.tree.flatten(found):
            dtype = getattr(leaf, "dtype", None)
            if getattr(dtype, "kind", None) in ("O", "S", "U", "M", "m"):
                raise InvalidInputError(
                    "fit was given data that are not numbers",
                    received=f"an array of dtype {dtype}",
                    allowed="integers, floats or booleans",
                    action="turn words and dates into numbers before",
                )
        return found

    @abstractmethod
    def _example(self) -> Any:
        """Returns the batch for `example`, unchecked."""


@final
class _EpochOrder:
    """The order of an epoch, drawn once for all its batches.

    Args:
        num_items: the number of rows or batches to order.
    """

    def __init__(self, num_items: int) -> None:
        self._num_items = num_items
        self._drawn: tuple[tuple[int, int], np.ndarray[Any, Any]] | None = None

    def of(self, epoch: int, *, seed: int) -> np.ndarray[Any, Any]:
        """Returns int64[indices], the same ones in every worker."""
        if self._drawn is None or self._drawn[0] != (seed, epoch):
            self._drawn = (seed, epoch), np.random.default_rng((seed, epoch)).permutation(self._num_items)
        return self._drawn[1]


@final
class ArrayBatches(AbstractBatches):
    """Rows of arrays, in an order that is drawn anew for each epoch, and is the same in every worker.

    Args:
        arrays: structures of arrays with rows as the first dimension: inputs, targets, weights.
        batch_size: the number of rows in a batch.
        shuffle: whether to shuffle the rows.
    """

    def __init__(self, arrays: tuple[Any, ...], *, batch_size: int, shuffle: bool) -> None:
        self._arrays = keras.tree.map_structure(lambda leaf: None if leaf is None else np.asarray(leaf), arrays)
        numbers = {len(leaf) for leaf in keras.tree.flatten(self._arrays) if leaf is not None}
        if len(numbers) != 1 or numbers == {0}:
            raise InvalidInputError(
                "rows of the arrays that fit was given",
                received=" and ".join(map(str, sorted(numbers))),
                allowed="1 or more, as many in x as in y and sample_weight",
            )
        (self._num_rows,) = numbers
        self._batch_size = batch_size
        self._order = _EpochOrder(self._num_rows) if shuffle else None

    @override
    def batch(self, number: int, *, seed: int) -> Any:
        epoch, batch = divmod(number, -(-self._num_rows // self._batch_size))
        rows: Any = slice(batch * self._batch_size, min((batch + 1) * self._batch_size, self._num_rows))
        if self._order is not None:
            rows = self._order.of(epoch, seed=seed)[rows]
        return keras.tree.map_structure(lambda leaf: None if leaf is None else leaf[rows], self._arrays)

    @override
    def _example(self) -> Any:
        return self.batch(0, seed=0)


@final
class NumberedBatches(AbstractBatches):
    """A ``keras.utils.PyDataset``, read by batch number.

    Args:
        dataset: the data.
        shuffle: whether to shuffle the batches of an epoch, as Keras's ``fit`` does.
    """

    def __init__(self, dataset: Any, *, shuffle: bool) -> None:
        self._dataset = dataset
        self._num_batches: int | None = dataset.num_batches
        self._order = _EpochOrder(self._num_batches) if shuffle and self._num_batches is not None else None

    @override
    def batch(self, number: int, *, seed: int) -> Any:
        if self._num_batches is None:  # endless
            return self._dataset[number]
        epoch, batch = divmod(number, self._num_batches)
        if self._order is not None:
            batch = int(self._order.of(epoch, seed=seed)[batch])
        return self._dataset[batch]

    @override
    def _example(self) -> Any:
        return self.batch(0, seed=0)


@final
class SeekableBatches(AbstractBatches):
    """`lockstep.data.Batches` or `Dataset`: read in order, with a seek where a worker skips batches.

    Args:
        dataset: the data.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._seek = dataset.seek if isinstance(dataset, GlobalBatches) else dataset.start_at
        self._next = -1
        self._iterator: Iterator[Any] = iter(())

    @override
    def batch(self, number: int, *, seed: int) -> Any:
        epoch, batch = divmod(number, self._dataset.num_batches)
        if number != self._next or batch == 0:
            self._seek(epoch=epoch, batch=batch)
            self._iterator = iter(self._dataset)
        self._next = number + 1
        return next(self._iterator)

    @override
    def _example(self) -> Any:
        return self.batch(0, seed=0)


@final
class SequentialBatches(AbstractBatches):
    """Any data that yields one batch after the other. Each worker reads its own copy from beginning to end, repeatedly.

    Args:
        make_iterator: a function that begins a pass.
        process_name: the name of the worker, for messages.
        is_read_once: whether the data cannot be read a second time.
    """

    def __init__(
        self, make_iterator: Callable[[], Iterator[Any]], *, process_name: str, is_read_once: bool = False
    ) -> None:
        self._make_iterator = make_iterator
        self._process_name = process_name
        self._is_read_once = is_read_once
        self._iterator: Iterator[Any] | None = None
        self._kept: list[Any] = []
        self._num_batches = 0

    @override
    def _example(self) -> Any:
        self._kept = self._kept or [self._following()]
        return self._kept[0]

    @override
    def batch(self, number: int, *, seed: int) -> Any:
        return self._kept.pop() if self._kept else self._following()

    def _following(self) -> Any:
        found = next(self._iterator, _ENDED) if self._iterator is not None else _ENDED
        if found is _ENDED and not (self._is_read_once and self._num_batches):
            self._iterator = self._make_iterator()
            found = next(self._iterator, _ENDED)
        if found is _ENDED:
            raise InvalidInputError(
                f"the data of {self._process_name} ended before the training did",
                received=f"{self._num_batches} batches",
                allowed="as many as the worker is given steps, which depends on how fast it is",
                action="have a generator repeat itself without end (each worker reads its own), or give fit arrays or "
                "lockstep.data.Batches, whose batches are shared out",
            )
        self._num_batches += 1
        return found


@final
class WeightedBatches(AbstractBatches):
    """Batches whose rows are weighted by class.

    Args:
        batches: the batches.
        weigh: a function that weights a batch.
    """

    def __init__(self, batches: AbstractBatches, weigh: ClassWeights) -> None:
        self._batches = batches
        self._weigh = weigh

    @override
    def batch(self, number: int, *, seed: int) -> Any:
        return self._weigh(self._batches.batch(number, seed=seed))

    @override
    def _example(self) -> Any:
        return self._weigh(self._batches.example())


def worker_batches(arguments: Mapping[str, Any], *, context: InputContext) -> AbstractBatches:
    """Returns the batches of one worker.

    Args:
        arguments: the arguments of ``fit`` by name.
        context: the position of the worker among the processes that read input.

    Raises:
        InvalidInputError: ``fit`` does not take this data.
    """
    x, y, weights = arguments.get("x"), arguments.get("y"), arguments.get("sample_weight")
    batch_size, class_weight = arguments.get("batch_size"), arguments.get("class_weight")
    if not isinstance(arguments.get("shuffle", True), bool | np.bool_):
        raise InvalidInputError(
            "shuffle of a fit by workers", received=arguments.get("shuffle"), allowed="True or False"
        )
    if isinstance(x, DatasetCreator):
        _check_created(arguments)
        x = x.dataset_fn(context)
        check_arguments("fit", {**arguments, "x": x}, is_distributed=True)
    shuffle = _shuffles(x, arguments)
    if not comes_in_batches(x) and can_convert_arrays((x, y, weights)):
        if class_weight is not None:
            if weights is not None:
                raise InvalidInputError("fit was given class_weight and sample_weight", allowed="one of them")
            weights = class_weight_to_sample_weights(y, class_weight)
        return ArrayBatches((x, y, weights), batch_size=batch_size or DEFAULT_BATCH_SIZE, shuffle=shuffle)
    batches = _batches_of(x, process_name=f"worker {context.input_pipeline_id}", shuffle=shuffle)
    return batches if class_weight is None else WeightedBatches(batches, ClassWeights(class_weight))


def _batches_of(data: Any, *, process_name: str, shuffle: bool) -> AbstractBatches:
    if isinstance(data, GlobalBatches) or (isinstance(data, ResumableData) and data.num_batches):
        return SeekableBatches(data)
    if isinstance(data, keras.utils.PyDataset):
        return NumberedBatches(data, shuffle=shuffle)
    try:
        adapter = get_data_adapter(x=data)  # in its own order
    except (ValueError, TypeError) as error:
        raise InvalidInputError(f"fit was given data that Keras does not take: {error}") from error
    is_read_once = isinstance(data, types.GeneratorType)
    return SequentialBatches(
        lambda: iter(adapter.get_jax_iterator()), process_name=process_name, is_read_once=is_read_once
    )


def _check_created(arguments: Mapping[str, Any]) -> None:
    """Rejects targets and weights beside a `DatasetCreator`, because each worker creates its own."""
    for name in ("y", "sample_weight"):
        if arguments.get(name) is not None:
            raise InvalidInputError(
                f"fit was given {name} beside a DatasetCreator, whose data are each worker's own",
                received=f"{name} with DatasetCreator",
                action="have dataset_fn return batches that hold it: (x, y) or (x, y, sample_weight)",
            )


def refuse_created(method: str, arguments: Mapping[str, Any]) -> None:
    """Rejects a `DatasetCreator` in data that this process would read itself, to evaluate or predict.

    Args:
        method: "fit", "evaluate" or "predict".
        arguments: the arguments of the call by name.

    Raises:
        InvalidInputError: there is a `DatasetCreator`.
    """
    for name in ("validation_data",) if method == "fit" else ("x",):
        if isinstance(arguments.get(name), DatasetCreator):
            raise InvalidInputError(
                f"{method} was given a DatasetCreator as {name}, and only fit's x is made by the workers",
                received="DatasetCreator",
                allowed="arrays, or data that yields batches",
                action="call its dataset_fn yourself: dataset_fn(lockstep.strategies.InputContext())",
            )


def _shuffles(data: Any, arguments: Mapping[str, Any]) -> bool:
    """Returns whether ``shuffle`` is requested; rejects requests that the workers cannot fulfil."""
    shuffle = bool(arguments.get("shuffle", True))
    has_numbers = isinstance(data, keras.utils.PyDataset) or not comes_in_batches(data)
    if shuffle and "shuffle" in arguments and not has_numbers and not getattr(data, "is_shuffled", False):
        raise InvalidInputError(
            "fit was given shuffle=True with data that has its own order",
            received=type(data).__name__,
            allowed="shuffle=False, or nothing",
            action="shuffle the data before",
        )
    return shuffle
