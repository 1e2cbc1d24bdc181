"""Functions that read the batches of a distributed data set's passes, and place them on the devices."""

# JAX and Keras are only partly typed, so the type checker does not know the types of their values in this file.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, TypeAlias, cast

import jax
import keras
import numpy as np

from lockstep.errors import InvalidInputError
from lockstep.strategies.epochs import place_for_step
from lockstep.strategies.input import (
    GlobalBatches,
    UnevenBatches,
    rows_of_batch,
)
from lockstep.strategies.mesh import AbstractLayout
from lockstep.strategies.peers import agreement
from lockstep.strategies.shares import ShareLayer, count_rows
from lockstep.upstream.keras_data import DataAdapter, get_data_adapter

Change: TypeAlias = Callable[[Any], Any]
"""A function that takes a process's rows of a batch and returns their replacement."""


def read_whole(layout: AbstractLayout, opened: Callable[[], Iterator[Any]]) -> Callable[[Change], Iterator[Any]]:
    """Returns a reader of data of which every process yields the same global batches."""

    def read(change: Change) -> Generator[Any]:
        is_first = True
        for batch in map(change, opened()):
            if is_first and layout.num_processes > 1:
                agreement.agree_on_batch(batch)
            is_first = False
            if count_rows(batch):
                yield place_for_step(layout, batch)

    return read


def read_own(layout: AbstractLayout, opened: Callable[[], Iterator[Any]]) -> Callable[[Change], Iterator[Any]]:
    """Returns a reader of data of which each process yields its own rows, until the data of all processes has ended."""

    def read(change: Change) -> Generator[Any]:
        layer = ShareLayer(layout)
        batches = (change(batch) for batch in opened() if count_rows(batch))  # an empty batch would look like the end
        while (placed := layer.place(next(batches, None))) is not None:
            yield placed

    return read


def read_shared(layout: AbstractLayout, data: GlobalBatches) -> Callable[[Change], Iterator[Any]]:
    """Returns a reader of data that yields this process's rows of global batches, and knows their number."""

    def read(change: Change) -> Generator[Any]:
        layer = ShareLayer(layout)
        first = data.position[1] if isinstance(data, UnevenBatches) else 0
        for number, rows in enumerate(map(change, cast("Iterable[Any]", data)), start=first):
            shares = data.shares_of_batch(number) if isinstance(data, UnevenBatches) else None
            if shares is not None:
                yield layer.place(rows, shares=shares)
            else:
                yield place_for_step(layout, rows, num_rows=rows_of_batch(data, number))

    return read


def passes_of(dataset: Any) -> Callable[[], Iterator[Any]]:
    """Returns a function that begins a pass, which yields batches as structures of NumPy arrays."""
    passes = itertools.count()

    def begin() -> Iterator[Any]:
        if isinstance(dataset, keras.utils.PyDataset):
            return _read_py_dataset(dataset)
        if isinstance(dataset, DataAdapter):
            return iter(dataset.get_numpy_iterator())
        if hasattr(dataset, "as_numpy_iterator"):  # of tf.data
            return iter(dataset.as_numpy_iterator())
        if not hasattr(dataset, "__iter__"):
            return iter(dataset())
        batches = iter(dataset)
        if batches is dataset and next(passes):
            raise InvalidInputError(
                "a generator can be read once, and a second pass over the data was begun",
                received=repr(dataset),
                action="give the function that makes it instead",
            )
        return batches

    def convert() -> Generator[Any]:
        for batch in begin():
            yield keras.tree.map_structure(_to_numpy, batch)

    return convert


def _read_py_dataset(dataset: keras.utils.PyDataset) -> Generator[Any]:
    # Keras's adapter starts the workers that such a data set specifies.
    adapter = cast("Any", get_data_adapter(dataset))
    adapter.on_epoch_begin()
    batches = adapter.get_jax_iterator()
    # If the pass is abandoned, the finalizer ends it at exit at the latest, while modules can still be used.
    end = weakref.finalize(adapter, _end_pass, adapter, batches)
    try:
        yield from itertools.islice(batches, adapter.num_batches)
    finally:
        end()


def _end_pass(adapter: Any, batches: Generator[Any]) -> None:
    batches.close()
    adapter.on_epoch_end()


def _to_numpy(leaf: Any) -> Any:
    if leaf is None or isinstance(leaf, jax.Array):
        return leaf
    array = np.asarray(leaf)
    if array.dtype.kind in "OSU":
        raise InvalidInputError(
            "a batch holds what devices cannot hold",
            received=f"an array of {array.dtype}",
            allowed="numbers",
            action="turn it into numbers first",
        )
    return array
