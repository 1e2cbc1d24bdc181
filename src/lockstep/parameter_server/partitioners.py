"""Partitioners decide how a variable is cut into shards, as those of ``tf.distribute.experimental.partitioners`` do.

A partitioner is called with a variable's shape and dtype, and returns the number of parts along each dimension. As in
``tf.distribute``, parameters are cut along the first dimension only.
"""

from __future__ import annotations

import abc
import itertools
import math
import operator
from collections.abc import Sequence
from typing import Final, final

import ml_dtypes
import numpy as np
from typing_extensions import override

from lockstep.errors import InvalidInputError

MIN_SHARD_BYTES: Final = 256 << 10


class AbstractPartitioner(abc.ABC):
    """Decides into how many shards a variable is cut. Pure: returns the same result in every process."""

    @abc.abstractmethod
    def __call__(self, shape: Sequence[int], dtype: str, axis: int = 0) -> list[int]:
        """Returns the number of parts along each dimension: 1, except for one dimension.

        Args:
            shape: the shape of the variable.
            dtype: the name of its dtype, such as ``float32``.
            axis: the dimension along which the variable may be cut.

        Raises:
            InvalidInputError: the variable has no such dimension.
        """


@final
class FixedShardsPartitioner(AbstractPartitioner):
    """Cuts each variable into a fixed number of shards, or into single rows if it has fewer rows than that.

    Args:
        num_shards: the number of shards.

    Raises:
        InvalidInputError: `num_shards` is not positive.
    """

    def __init__(self, num_shards: int) -> None:
        self._num_shards = _positive("num_shards", num_shards)

    @override
    def __call__(self, shape: Sequence[int], dtype: str, axis: int = 0) -> list[int]:
        del dtype
        return _cut(shape, axis=axis, num_parts=self._num_shards)


@final
class MinSizePartitioner(AbstractPartitioner):
    """Cuts each variable into as many shards as possible, each of about ``min_shard_bytes`` or more.

    Args:
        min_shard_bytes: the approximate minimum size of a shard, in bytes. The last one may be smaller, as in
            ``tf.distribute``.
        max_shards: the maximum number of shards of a variable.

    Raises:
        InvalidInputError: a number is not positive.
    """

    def __init__(self, min_shard_bytes: int = MIN_SHARD_BYTES, max_shards: int = 1) -> None:
        self._min_shard_bytes = _positive("min_shard_bytes", min_shard_bytes)
        self._max_shards = _positive("max_shards", max_shards)

    @override
    def __call__(self, shape: Sequence[int], dtype: str, axis: int = 0) -> list[int]:
        num_parts = math.ceil(size_bytes(shape, dtype) / self._min_shard_bytes)
        return _cut(shape, axis=axis, num_parts=min(self._max_shards, num_parts))


@final
class MaxSizePartitioner(AbstractPartitioner):
    """Cuts each variable into as few shards as possible, each of at most ``max_shard_bytes`` or one row.

    Args:
        max_shard_bytes: the maximum size of a shard, in bytes.
        max_shards: the maximum number of shards of a variable, which may make its shards larger; None for no limit.

    Raises:
        InvalidInputError: a number is not positive.
    """

    def __init__(self, max_shard_bytes: int, max_shards: int | None = None) -> None:
        self._max_shard_bytes = _positive("max_shard_bytes", max_shard_bytes)
        self._max_shards = None if max_shards is None else _positive("max_shards", max_shards)

    @override
    def __call__(self, shape: Sequence[int], dtype: str, axis: int = 0) -> list[int]:
        _check_axis(shape, axis)
        num_rows = shape[axis]
        row_bytes = size_bytes(shape, dtype) / num_rows if num_rows else 0.0
        rows_per_shard = max(1, math.floor(self._max_shard_bytes / row_bytes)) if row_bytes else max(1, num_rows)
        num_parts = math.ceil(num_rows / rows_per_shard)
        return _cut(shape, axis=axis, num_parts=min(self._max_shards or num_parts, num_parts))


def size_bytes(shape: Sequence[int], dtype: str) -> int:
    """Returns the size of an array in memory, in bytes.

    Raises:
        InvalidInputError: there is no such dtype.
    """
    return math.prod(shape) * item_bytes(dtype)


def item_bytes(dtype: str) -> int:
    """Returns the size of one value, in bytes.

    Raises:
        InvalidInputError: there is no such dtype.
    """
    try:
        return np.dtype(getattr(ml_dtypes, dtype, dtype)).itemsize
    except TypeError as error:
        raise InvalidInputError("there is no such dtype", received=dtype) from error


def shard_bounds(num_rows: int, *, num_shards: int) -> list[tuple[int, int]]:
    """Returns (first row, row after the last) of each shard; the first shards get the rows left by the division.

    Args:
        num_rows: the number of rows of the whole variable.
        num_shards: the number of shards.
    """
    starts = [shard * (num_rows // num_shards) + min(shard, num_rows % num_shards) for shard in range(num_shards + 1)]
    return list(itertools.pairwise(starts))


def _cut(shape: Sequence[int], *, axis: int, num_parts: int) -> list[int]:
    _check_axis(shape, axis)
    parts = [1] * len(shape)
    parts[axis] = max(1, min(shape[axis], num_parts))
    return parts


def _check_axis(shape: Sequence[int], axis: int) -> None:
    if not 0 <= axis < len(shape):
        raise InvalidInputError("the variable has no such axis", received=axis, allowed=f"0 to {len(shape) - 1}")


def _positive(name: str, value: int) -> int:
    try:
        number = 0 if isinstance(value, bool) else operator.index(value)  # accepts NumPy's integers too
    except TypeError:
        number = 0
    if number < 1:
        raise InvalidInputError(f"{name} of a partitioner", received=value, allowed="a positive integer")
    return number
