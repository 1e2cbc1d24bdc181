"""Values go into servers' buffers and come out as they were, wherever variables were cut."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.parameter_server.flattening import flatten, unflatten
from lockstep.parameter_server.partitioners import FixedShardsPartitioner
from lockstep.parameter_server.placement import VariableSpec, place

SHAPES = st.lists(st.lists(st.integers(1, 5), max_size=3).map(tuple), min_size=4, max_size=7)


@settings(deadline=None, max_examples=8)
@given(shapes=SHAPES, num_servers=st.integers(1, 3), num_shards=st.integers(1, 3), missing=st.sets(st.integers(0, 3)))
@pytest.mark.heavy
def test_what_goes_in_comes_out(
    shapes: list[tuple[int, ...]], num_servers: int, num_shards: int, missing: set[int]
) -> None:
    dtypes = ["float32" if number % 2 else "bfloat16" for number in range(len(shapes))]
    specs = [
        VariableSpec(path=f"v{number}", shape=shape, dtype=dtype)
        for number, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))
    ]
    placement = place(specs, num_servers=num_servers, partitioner=FixedShardsPartitioner(num_shards))
    random = np.random.default_rng(0)
    values: list[Any] = [
        jax.numpy.asarray(random.integers(0, 99, shape), dtype) for shape, dtype in zip(shapes, dtypes, strict=True)
    ]
    everything = list(range(len(shapes)))
    buffers, masks = flatten(placement, everything, values)
    assert all(all(mask) for mask in masks)
    for server, own in enumerate(buffers):
        assert {dtype: buffer.size for dtype, buffer in own.items()} == placement.buffer_sizes(server)
    for found, value in zip(unflatten(placement, buffers), values, strict=True):
        np.testing.assert_array_equal(np.asarray(found, np.float32), np.asarray(value, np.float32))
        assert found.dtype == value.dtype
    some = [None if number in missing else value for number, value in enumerate(values)]
    buffers, masks = flatten(placement, everything, some)
    for server, shards in enumerate(placement.by_server):
        assert masks[server] == tuple(shard.variable not in missing for shard in shards)
        sizes = sum(shard.size for shard in shards if shard.variable not in missing)
        assert sum(buffer.size for buffer in buffers[server].values()) == sizes
