"""Sparse and ragged arrays, for records with different numbers of values: TensorFlow's tensors as NumPy arrays.

Both classes are named tuples, so that JAX treats them as pytrees.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lockstep.data.arguments import check_int, is_sequence
from lockstep.data.examples.arguments import check_array
from lockstep.errors import InvalidInputError, counted


class SparseArray(NamedTuple):
    """The values of a `VarLenFeature` or `SparseFeature`, with the fields of ``tf.SparseTensor``.

    Attributes:
        indices: the index of each value, int64 of shape (num_values, num_dims).
        values: the values, of shape (num_values,).
        dense_shape: the shape of the dense array, int64 of shape (num_dims,): the number of records, and then, for a
            `VarLenFeature`, the largest number of values of a record.
    """

    indices: np.ndarray
    values: np.ndarray
    dense_shape: np.ndarray

    def to_dense(self, default_value: Any = None) -> np.ndarray:
        """Returns an array of shape ``dense_shape``.

        Args:
            default_value: the value for positions without a value; 0 or b"" by default.

        Raises:
            InvalidInputError: If the default is not a single value of the dtype.
        """
        dense = np.full(tuple(self.dense_shape), _padding_value(self.values, default_value), self.values.dtype)
        dense[tuple(self.indices.T)] = self.values
        return dense


class RaggedArray(NamedTuple):
    """The values of a `RaggedFeature`, with the fields of ``tf.RaggedTensor``.

    Attributes:
        values: the concatenated rows: an array, or a `RaggedArray` of the next dimension's rows.
        row_splits: the ends of the rows, integers of shape (num_rows + 1,): row i is
            ``values[row_splits[i]:row_splits[i + 1]]``.
    """

    values: Any
    row_splits: np.ndarray

    @property
    def ragged_rank(self) -> int:
        """The number of ragged dimensions: those with rows of different lengths."""
        return 1 + (self.values.ragged_rank if isinstance(self.values, RaggedArray) else 0)

    @property
    def row_lengths(self) -> np.ndarray:
        """The length of each row, of shape (num_rows,)."""
        return np.diff(self.row_splits)

    def to_list(self) -> list[Any]:
        """Returns the rows as nested lists.

        Raises:
            InvalidInputError: If ``row_splits`` do not fit the values.
        """
        self._check_row_splits()
        inner: list[Any] = self.values.to_list() if isinstance(self.values, RaggedArray) else self.values.tolist()
        splits = self.row_splits.tolist()
        return [inner[start:end] for start, end in itertools.pairwise(splits)]

    def to_dense(self, *, size: int | Sequence[int | None] | None = None, default_value: Any = None) -> np.ndarray:
        """Returns an array of shape (num_rows, size, ...), with each row padded at its end.

        Args:
            size: the length of all rows, to which longer rows are cut; by default the length of the longest row. For
                several ragged dimensions, one length for each, None for the length of the longest row.
            default_value: the value to pad with; 0 or b"" by default.

        Raises:
            InvalidInputError: If a length is not a whole number or is negative, if the number of lengths is not that of
                ragged dimensions, if the default is not a single value of the dtype, or if ``row_splits`` do not fit
                the values.
        """
        self._check_row_splits()
        sizes = self._check_sizes(size)
        values = self.values
        if isinstance(values, RaggedArray):
            values = values.to_dense(size=sizes[1:], default_value=default_value)
        lengths = self.row_lengths
        width = int(lengths.max(initial=0)) if sizes[0] is None else sizes[0]
        dense = np.full((len(lengths), width, *values.shape[1:]), _padding_value(values, default_value), values.dtype)
        is_there = np.arange(width) < lengths[:, np.newaxis]
        columns = np.arange(int(lengths.sum())) - np.repeat(self.row_splits[:-1], lengths)
        dense[is_there] = values[columns < width]
        return dense

    def _check_row_splits(self) -> None:
        # Not in the constructor: JAX and Keras rebuild named tuples from leaves that have been sliced or joined.
        splits = np.asarray(self.row_splits)
        num_values = len(self.values.row_splits) - 1 if isinstance(self.values, RaggedArray) else len(self.values)
        if not splits.size and num_values <= 0:  # the first 0 rows of each leaf
            return
        is_one_list = splits.ndim == 1 and splits.size > 0 and splits.dtype.kind in "iu"
        if not is_one_list or splits[0] != 0 or splits[-1] != num_values or (splits[1:] < splits[:-1]).any():
            raise InvalidInputError(
                "the row_splits of a ragged array",
                received=splits.tolist(),
                allowed=f"integers that start at 0, never decrease, and end at {num_values}, the number of values",
            )

    def _check_sizes(self, value: Any) -> tuple[int | None, ...]:
        name = "the lengths of ragged dimensions"
        sizes = (None,) * self.ragged_rank if value is None else tuple(value) if is_sequence(value) else (value,)
        if len(sizes) != self.ragged_rank:
            allowed = f"{counted(self.ragged_rank, 'length')}, None for that of the longest row"
            raise InvalidInputError(name, received=value, allowed=allowed)
        return tuple(None if size is None else check_int(size, name=name, minimum=0) for size in sizes)


def _padding_value(values: np.ndarray, default_value: Any) -> Any:
    if default_value is None:
        return b"" if values.dtype == object else 0
    what = "the padding value of rows"
    filling = check_array(default_value, values.dtype, what=what)
    if filling.size != 1:
        raise InvalidInputError(what, received=default_value, allowed="one value")
    return filling.reshape(-1)[0]
