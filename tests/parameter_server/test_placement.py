"""Which server has what: all of it somewhere, once, evenly, and the same wherever it is asked."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.errors import InvalidInputError
from lockstep.parameter_server.partitioners import FixedShardsPartitioner, MinSizePartitioner
from lockstep.parameter_server.placement import Partitioner, VariableSpec, place


def specs(*shapes: tuple[int, ...], dtype: str = "float32", is_whole: bool = False) -> list[VariableSpec]:
    return [
        VariableSpec(path=f"v{number}", shape=shape, dtype=dtype, is_whole=is_whole)
        for number, shape in enumerate(shapes)
    ]


def test_the_largest_goes_first_to_the_server_with_the_least() -> None:
    found = place(specs((10,), (784, 128), (128,), (128, 128), ()), num_servers=2)
    assert [shard.server for shard in found.shards] == [1, 0, 1, 1, 1]
    assert found.server_bytes(0) == 4 * 784 * 128
    assert found.buffer_sizes(1) == {"float32": 10 + 128 + 128 * 128 + 1}


def test_the_shards_of_one_variable_go_to_different_servers() -> None:
    found = place(specs((1000, 64)), num_servers=4, partitioner=FixedShardsPartitioner(4))
    assert sorted(shard.server for shard in found.shards) == [0, 1, 2, 3]
    assert [(shard.start, shard.end) for shard in found.by_variable[0]] == [
        (0, 250),
        (250, 500),
        (500, 750),
        (750, 1000),
    ]


def test_what_must_stay_whole_is_not_cut() -> None:
    found = place(
        [*specs((100, 4), is_whole=True), VariableSpec(path="other", shape=(100, 4), dtype="float32")],
        num_servers=2,
        partitioner=FixedShardsPartitioner(2),
    )
    assert [len(shards) for shards in found.by_variable] == [1, 2]


def test_each_dtype_has_a_buffer() -> None:
    variables = [VariableSpec(path=dtype, shape=(8,), dtype=dtype) for dtype in ("float32", "bfloat16", "float32 ")[:2]]
    found = place(variables, num_servers=1)
    assert [shard.offset for shard in found.shards] == [0, 0]
    assert found.buffer_sizes(0) == {"float32": 8, "bfloat16": 8}
    assert found.server_bytes(0) == 48


@given(
    shapes=st.lists(st.lists(st.integers(1, 40), max_size=3).map(tuple), min_size=4, max_size=20),
    num_servers=st.integers(1, 4),
    num_shards=st.integers(1, 6),
)
def test_every_value_is_in_one_place(shapes: list[tuple[int, ...]], num_servers: int, num_shards: int) -> None:
    found = place(specs(*shapes), num_servers=num_servers, partitioner=FixedShardsPartitioner(num_shards))
    for index, shape in enumerate(shapes):
        rows = [row for shard in found.by_variable[index] for row in range(shard.start, shard.end)]
        assert rows == list(range(shape[0] if shape else 1))
        assert sum(shard.size for shard in found.by_variable[index]) == math.prod(shape)
    for server in range(num_servers):
        taken = sorted((shard.offset, shard.size) for shard in found.by_server[server])
        ends = [0, *(offset + size for offset, size in taken)]
        assert [offset for offset, _ in taken] == ends[:-1]
        assert found.buffer_sizes(server)["float32"] == ends[-1]
    largest = max(shard.size for shard in found.shards)
    sizes = [found.server_bytes(server) // 4 for server in range(num_servers)]
    assert max(sizes) - min(sizes) <= largest, "no server has more than one shard too many"


def test_a_server_that_would_be_empty_is_said() -> None:
    with pytest.raises(
        InvalidInputError,
        match=r"server 2 would have nothing to keep; received '2 variables in 2 shards over 4 servers'; use fewer",
    ):
        place(specs((3,), (4,)), num_servers=4)
    assert place(specs((3,), (4,)), num_servers=4, partitioner=FixedShardsPartitioner(2)).num_servers == 4


def test_a_server_that_has_rows_of_tables_needs_no_variable() -> None:
    assert place([], num_servers=2, num_with_rows=1000).by_server == ((), ())
    found = place(specs((3,)), num_servers=3, num_with_rows=1000)
    assert [found.buffer_sizes(server) for server in range(3)] == [{"float32": 3}, {}, {}]
    with pytest.raises(InvalidInputError, match="server 2 would have nothing to keep; received '1 variable in 1 shard"):
        place(specs((3,)), num_servers=3, num_with_rows=2)


@pytest.mark.parametrize(
    ("partitioner", "message"),
    [
        pytest.param(lambda _shape, _dtype: [1, 2], "a number for each dim, all but the first one 1", id="second dim"),
        pytest.param(lambda _shape, _dtype: [2], "a number for each dim", id="too few"),
        pytest.param(lambda _shape, _dtype: [0, 1], "1 to 8 shards: each has a row", id="none"),
        pytest.param(lambda _shape, _dtype: [9, 1], "1 to 8 shards: each has a row", id="more than rows"),
        pytest.param(lambda _shape, _dtype: [2.0, 1], r"received \[2.0, 1\]; allowed: integers", id="no whole number"),
    ],
)
def test_a_partitioner_that_cuts_wrongly_is_refused(partitioner: Partitioner, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        place(specs((8, 3)), num_servers=1, partitioner=partitioner)


def test_two_variables_of_one_path_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"two variables have one path.*received 'v0'"):
        place([*specs((3,)), *specs((3,))], num_servers=1)


def test_any_function_will_do_as_a_partitioner() -> None:
    def halves(shape: Sequence[int], dtype: str) -> list[int]:
        assert dtype == "float32"
        return [2, *([1] * (len(shape) - 1))]

    assert len(place(specs((8, 3)), num_servers=2, partitioner=halves).shards) == 2
    shards = place(specs((8, 3)), num_servers=2, partitioner=lambda shape, _: np.minimum(shape, [2, 1])).shards
    assert {type(shard.end) for shard in shards} == {int}, "which travels"
    assert len(place(specs((8, 3)), num_servers=1, partitioner=MinSizePartitioner()).shards) == 1
