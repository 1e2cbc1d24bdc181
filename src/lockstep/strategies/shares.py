"""Joins the rows that each process reads for itself into one global batch.

If every process has the same number of rows and they divide evenly over the replicas, each process places its own rows
on its own devices, and no rows are sent. Otherwise (mostly near the end of an epoch), a batch is divided over
gcd(rows, replicas) groups of replicas. The groups' boundaries are not those of the processes, so every process receives
all rows of this batch.

All functions are collective: every process must make the same calls, including a process whose own data has ended.
"""

# JAX and Keras are only partly typed, so the type checker does not know the types of their values in this file.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, Final, cast, final

import jax
import keras
import numpy as np
from jax.experimental import multihost_utils

from lockstep.errors import InvalidInputError
from lockstep.strategies.mesh import AbstractLayout

_LEAF: Final = "leaf"


def gather_counts(count: int) -> tuple[int, ...]:
    """Gathers one number from every process. This is a collective, and takes a few milliseconds on one machine.

    Args:
        count: this process's number, below 2**31.

    Returns:
        The numbers of all processes, in the order of the processes.
    """
    return tuple(int(number) for number in _gather(np.array([count], np.int32))[:, 0])


def _gather(array: np.ndarray) -> np.ndarray:
    """Returns the arrays of all processes, which have one shape, stacked in the order of the processes."""
    if jax.process_count() == 1:
        return array[None]
    return np.asarray(multihost_utils.process_allgather(array))


@final
class ShareLayer:
    """Joins the processes' rows into global batches, batch after batch. Create one for each pass over the data.

    Args:
        layout: the strategy's layout.
    """

    def __init__(self, layout: AbstractLayout) -> None:
        self._layout = layout
        self._template: Any = None
        self._is_agreed = False

    def place(self, rows: Any, *, shares: Sequence[int] | None = None) -> Any:
        """Places a global batch on the devices.

        Args:
            rows: this process's rows: a structure of arrays, each with the same number of rows. None if the process has
                no rows.
            shares: the number of rows of each process, if known. By default, the processes exchange their numbers.

        Returns:
            The structure of global arrays, with the rows in the order of the processes; None if no process has a row.

        Raises:
            InvalidInputError: the arrays of a batch have different numbers of rows, the processes' batches have
                different structures, or the data was divided for another number of processes.
        """
        own = count_rows(rows)
        counts = gather_counts(own) if shares is None else tuple(shares)
        if len(counts) != self._layout.num_processes:
            raise InvalidInputError(
                "the data was divided for another number of workers than the strategy has",
                received=len(counts),
                allowed=str(self._layout.num_processes),
                action="give it the input_context of this strategy",
            )
        if not any(counts):
            return None
        total = sum(counts)
        if not self._is_agreed:
            self._agree(rows if own else None)
        if len(counts) == 1 or (len(set(counts)) == 1 and total % self._layout.num_replicas == 0):
            return self._layout.place(rows, num_rows=total)
        held = rows if own else self._template
        return self._layout.place(_exchange(held, counts))

    def _agree(self, rows: Any) -> None:
        """Compares the structures of the processes' batches, and records the structure for a process without rows."""
        described = b"" if rows is None else json.dumps(_describe(rows)).encode()
        size = max(gather_counts(len(described)))
        padded = np.frombuffer(described.ljust(size), np.uint8)
        found = [bytes(row).strip() for row in _gather(padded)]
        known = {text: process for process, text in reversed(list(enumerate(found))) if text}
        if len(known) > 1:
            first, second = sorted(known.values())[:2]
            raise InvalidInputError(
                "the workers' batches have different structures",
                received=f"{found[first].decode()} in worker {first}, {found[second].decode()} in worker {second}",
                allowed="one structure, with the same shapes and dtypes but for the number of rows",
            )
        self._template = _make_empty(json.loads(next(iter(known))))
        self._is_agreed = True


def count_rows(batch: Any) -> int:
    """Returns the number of rows of a batch.

    Args:
        batch: a structure of arrays whose first dim is the rows. None leaves and scalars do not count.

    Raises:
        InvalidInputError: the arrays have different numbers of rows.
    """
    shapes = [np.shape(leaf) for leaf in keras.tree.flatten(batch) if leaf is not None]
    counts = sorted({int(shape[0]) for shape in shapes if shape})
    if len(counts) > 1:
        raise InvalidInputError(
            "the arrays of one batch have different numbers of rows", received=counts, allowed="one number of rows"
        )
    return counts[0] if counts else 0


def _exchange(rows: Any, counts: Sequence[int]) -> Any:
    """Returns the rows of all processes, by one collective over the concatenated bytes of the rows."""
    # As bytes, because JAX would convert 64-bit numbers to 32 bits.
    arrays = [np.asarray(leaf) for leaf in keras.tree.flatten(rows) if leaf is not None]
    packed = np.concatenate([_as_bytes(array) for array in arrays], axis=1)
    gathered = _gather(np.pad(packed, ((0, max(counts) - len(packed)), (0, 0))))
    whole = np.concatenate([part[:count] for part, count in zip(gathered, counts, strict=True)])
    found: list[np.ndarray] = []
    start = 0
    for array in arrays:
        column = np.ascontiguousarray(whole[:, start : start + _row_bytes(array)])
        found.append(np.frombuffer(column.tobytes(), array.dtype).reshape(len(whole), *array.shape[1:]))
        start += _row_bytes(array)
    remaining = iter(found)

    def replace(leaf: Any) -> Any:
        return None if leaf is None else next(remaining)

    return keras.tree.map_structure(replace, rows)


def _as_bytes(array: np.ndarray) -> np.ndarray:
    return np.frombuffer(array.tobytes(), np.uint8).reshape(len(array), _row_bytes(array))


def _row_bytes(array: np.ndarray) -> int:
    return math.prod(array.shape[1:]) * array.dtype.itemsize


def _describe(batch: Any) -> Any:
    """Returns a batch's structure as a JSON value."""
    if isinstance(batch, dict):
        return {"dict": {str(key): _describe(value) for key, value in cast("dict[Any, Any]", batch).items()}}
    if isinstance(batch, list | tuple):
        return {type(batch).__name__: [_describe(value) for value in cast("Sequence[Any]", batch)]}
    if batch is None:
        return None
    array = np.asarray(batch)
    if not array.ndim or array.dtype.hasobject:
        raise InvalidInputError(
            "a batch whose rows each worker reads for itself",
            received=f"a leaf of shape {array.shape} and dtype {array.dtype}",
            allowed="arrays of numbers, rows first",
        )
    return {_LEAF: [list(array.shape[1:]), array.dtype.name]}


def _make_empty(description: Any) -> Any:
    """Returns a batch without rows, of a structure from `_describe`."""
    if description is None:
        return None
    ((kind, value),) = description.items()
    if kind == _LEAF:
        shape, dtype = value
        return np.zeros((0, *shape), dtype)
    if kind == "dict":
        return {key: _make_empty(member) for key, member in value.items()}
    members = [_make_empty(member) for member in value]
    return members if kind == "list" else tuple(members)
