"""Bodies of numbers are read as every other body is, only faster; what is not such a body is left to the others."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.errors import LockstepError
from lockstep.serving.instances import InputSpec, cast_exactly, read_instances, read_request
from lockstep.serving.number_lists import read_numbers

pytest.importorskip("simdjson")

NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([-0.0, 1e-320, 255, 256, 2**31, 0.5]),
)


def spec(*shape: int | None, dtype: str = "float32") -> InputSpec:
    return InputSpec(name="x", shape=shape, dtype=dtype)


def read_as_always(body: bytes, of: InputSpec) -> np.ndarray | None:
    try:
        return read_instances(read_request(body), specs=[of])["x"]
    except LockstepError:
        return None


@given(
    rows=st.lists(st.lists(st.lists(NUMBERS, min_size=2, max_size=2), min_size=3, max_size=3), min_size=1, max_size=3),
    dtype=st.sampled_from(["float32", "float16", "int32", "uint8"]),
    indent=st.sampled_from([None, 1]),
)
def test_numbers_are_read_as_always(rows: list[object], dtype: str, indent: int | None) -> None:
    body = json.dumps({"instances": rows}, indent=indent).encode()
    of = spec(3, 2, dtype=dtype)
    found = read_numbers(body, of)
    array = None if found is None else cast_exactly(found, dtype)
    if array is not None:
        expected = read_as_always(body, of)
        assert expected is not None
        assert array.dtype == expected.dtype
        np.testing.assert_allclose(array, expected, rtol=1e-7)  # of integers beyond 2^53, one is rounded twice


@pytest.mark.parametrize("shape", [(), (1,), (4,), (28, 28, 1), (2, 1, 3)])
@pytest.mark.parametrize("num_rows", [1, 2, 7])
def test_lists_of_the_inputs_shape_are_read_here(shape: tuple[int, ...], num_rows: int) -> None:
    values = np.round(np.random.default_rng(0).normal(size=(num_rows, *shape)), 4)
    found = read_numbers(json.dumps({"instances": values.tolist()}).encode(), spec(*shape))
    assert found is not None
    np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize(
    "instances",
    [
        "[]",
        "[[]]",
        "[[1]]",
        "[[1,2,3]]",
        "[[1,2],[3]]",
        "[[1],[2,3]]",
        "[[[1,2]]]",
        "[1,2]",
        "[[1,2],]",
        "[[1,]]",
        "[[,1]]",
        "[[1 2,3]]",
        "[[1,2]3]",
        "[[1,-]]",
        "[[1,--2]]",
        "[[1,0x2]]",
        "[[01,2]]",
        "[[1.,2]]",
        "[[.1,2]]",
        "[[1e999,2]]",
        "[[1,true]]",
        "[[1,null]]",
        '[[1,"2"]]',
        '[{"b64":"AAAA"}]',
        "[[1,NaN]]",
    ],
)
def test_anything_else_is_left_to_the_others(instances: str) -> None:
    assert read_numbers(f'{{"instances":{instances}}}'.encode(), spec(2)) is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[[1,2]]",
        b'{"instances":[[1,2]]',
        b'{"instances":[[1,2]]}}',
        b'{"instances1":[[1,2]]}',
        b'{"instanc s":[[1,2]]}',
        b'{"instancs":[[1,2]]}',
        b'{"instances":[[1,2]],"a":1}',
        b'{"instances":[[1,2]],"instances":[[3,4]]}',
        b'{"instances":[[1,2]]}\xff',
        b'1{"instances":[[1,2]]}',
    ],
)
def test_other_bodies_are_left_to_the_others(body: bytes) -> None:
    assert read_numbers(body, spec(2)) is None


@pytest.mark.parametrize("of", [spec(None), spec(2, dtype="bool"), spec(2, dtype="int64"), spec(0)])
def test_other_inputs_are_left_to_the_others(of: InputSpec) -> None:
    assert read_numbers(b'{"instances":[[1,2]]}', of) is None
