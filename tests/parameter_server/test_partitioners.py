"""Partitioners cut as those of ``tf.distribute`` do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.errors import InvalidInputError
from lockstep.parameter_server.partitioners import (
    FixedShardsPartitioner,
    MaxSizePartitioner,
    MinSizePartitioner,
    shard_bounds,
    size_bytes,
)

CUTS = {
    # What ``tf.distribute.experimental.partitioners`` answer.
    "two": (FixedShardsPartitioner(num_shards=2), (10, 3), [2, 1]),
    "more than rows": (FixedShardsPartitioner(num_shards=4), (3,), [3]),
    "at least, two": (MinSizePartitioner(min_shard_bytes=4, max_shards=2), (6, 1), [2, 1]),
    "at least, ten": (MinSizePartitioner(min_shard_bytes=4, max_shards=10), (6, 1), [6, 1]),
    "at least, eight": (MinSizePartitioner(max_shards=8), (1000, 1000), [8, 1]),
    "at least, hundred": (MinSizePartitioner(max_shards=100), (1000, 1000), [16, 1]),
    "at least, one": (MinSizePartitioner(), (1000, 1000), [1, 1]),
    "at most": (MaxSizePartitioner(max_shard_bytes=4), (6, 1), [6, 1]),
    "at most, two": (MaxSizePartitioner(max_shard_bytes=4, max_shards=2), (6, 1), [2, 1]),
    "at most, larger than all": (MaxSizePartitioner(max_shard_bytes=1024), (6, 1), [1, 1]),
    "at most, rows": (MaxSizePartitioner(max_shard_bytes=1000), (100, 7), [3, 1]),
}


@pytest.mark.parametrize(("partitioner", "shape", "parts"), CUTS.values(), ids=CUTS)
def test_it_cuts_as_tf_distribute_does(
    partitioner: Callable[[Sequence[int], str], list[int]], shape: tuple[int, ...], parts: list[int]
) -> None:
    assert partitioner(shape, "float32") == parts


def test_another_dim_can_be_named() -> None:
    assert FixedShardsPartitioner(2)((3, 10), "float32", axis=1) == [1, 2]
    with pytest.raises(InvalidInputError, match=r"the variable has no such axis; received 2; allowed: 0 to 1"):
        FixedShardsPartitioner(2)((3, 10), "float32", axis=2)


@given(
    num_rows=st.integers(1, 10_000),
    num_columns=st.integers(1, 300),
    most=st.integers(1, 100_000),
    dtype=st.sampled_from(["float32", "bfloat16", "float64", "int8"]),
)
def test_no_shard_is_larger_than_it_may_be_unless_a_row_is(
    num_rows: int, num_columns: int, most: int, dtype: str
) -> None:
    row_bytes = size_bytes((num_columns,), dtype)
    parts = MaxSizePartitioner(most)((num_rows, num_columns), dtype)[0]
    largest = max(end - start for start, end in shard_bounds(num_rows, num_shards=parts))
    assert largest * row_bytes <= max(most, row_bytes)


@given(num_rows=st.integers(0, 1000), num_shards=st.integers(1, 50))
def test_shards_cover_all_rows_evenly(num_rows: int, num_shards: int) -> None:
    bounds = shard_bounds(num_rows, num_shards=num_shards)
    assert [row for start, end in bounds for row in range(start, end)] == list(range(num_rows))
    sizes = [end - start for start, end in bounds]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("make", [FixedShardsPartitioner, MaxSizePartitioner, MinSizePartitioner])
@pytest.mark.parametrize("value", [0, -1, True, 1.5])
def test_what_is_no_positive_number_is_refused(make: Callable[[object], object], value: object) -> None:
    with pytest.raises(InvalidInputError, match="allowed: a positive integer"):
        make(value)


@pytest.mark.parametrize("make", [FixedShardsPartitioner, MaxSizePartitioner, MinSizePartitioner])
def test_numpys_whole_numbers_are_taken(make: Callable[[Any], Callable[..., list[int]]]) -> None:
    assert make(np.int64(2))((6, 1), "float32") == make(2)((6, 1), "float32")


def test_a_dtype_that_there_is_not_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"there is no such dtype; received 'floot'"):
        MaxSizePartitioner(10)((3, 3), "floot")
