"""How the passes of a distributed data set read batches, and lay them out."""

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
"""Takes a process's rows of a batch, and returns what takes their place."""


def read_whole(layout: AbstractLayout, opened: Callable[[], Iterator[Any]]) -> Callable[[Change], Iterator[Any]]:
    """Every process yields the same global batches."""

    def read(change: Change) -> Generator[Any]:
        is_first = True
        for batch in map(change, opened()):
            if is_first and layout.num_processes > 1:
                agreement.agree_on_batch(batch)
            is_first = False
            if count_rows(batch):
                yield layout.place(batch)

    return read


def read_own(layout: AbstractLayout, opened: Callable[[], Iterator[Any]]) -> Callable[[Change], Iterator[Any]]:
    """Each process yields rows of its own, until all have ended."""

    def read(change: Change) -> Generator[Any]:
        layer = ShareLayer(layout)
        batches = (change(batch) for batch in opened() if count_rows(batch))  # one without rows would look like the end
        while (placed := layer.lay(next(batches, None))) is not None:
            yield placed

    return read


def read_shared(layout: AbstractLayout, data: GlobalBatches) -> Callable[[Change], Iterator[Any]]:
    """Each process yields its rows of global batches, and the data knows how many those are."""

    def read(change: Change) -> Generator[Any]:
        layer = ShareLayer(layout)
        first = data.position[1] if isinstance(data, UnevenBatches) else 0
        for number, rows in enumerate(map(change, cast("Iterable[Any]", data)), start=first):
            shares = data.shares_of_batch(number) if isinstance(data, UnevenBatches) else None
            if shares is not None:
                yield layer.lay(rows, shares=shares)
            else:
                yield layout.place(rows, num_rows=rows_of_batch(data, number))

    return read


def passes_of(dataset: Any) -> Callable[[], Iterator[Any]]:
    """Returns what begins a pass; batches come as structures of NumPy arrays."""
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
    # Keras's adapter has the workers that such a data set asks for.
    adapter = cast("Any", get_data_adapter(dataset))
    adapter.on_epoch_begin()
    batches = adapter.get_jax_iterator()
    # Whoever leaves the pass behind ends it with the program, while modules are still whole.
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
