"""Ids that a step takes from its batch as they are need no program to be known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.parameter_server.embedding.lookups import pad_to_power_of_two, unique_with_inverse
from lockstep.parameter_server.embedding.unchanged_arguments import find_unchanged_arguments

IDS = np.arange(6, dtype=np.int32).reshape(3, 2)
OTHERS = np.array([7, 8], np.uint8)


def read(program: Callable[..., Any], *arguments: Any) -> list[np.ndarray[Any, Any]] | None:
    known = find_unchanged_arguments(jax.jit(program).trace(*arguments).jaxpr.jaxpr)
    return None if known is None else [ids.read(jax.tree.leaves(arguments)) for ids in known]


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(lambda ids, others: [ids, others], id="itself"),
        pytest.param(lambda ids, others: [others.astype("int32"), ids.astype("int32")], id="converted"),
        pytest.param(lambda ids, others: [ids.reshape(-1), others.reshape(1, 2, 1)], id="of another shape"),
    ],
)
def test_what_is_passed_on_is_read(program: Callable[..., Any]) -> None:
    found = read(program, IDS, OTHERS)
    assert found is not None
    for own, other in zip(found, program(jnp.asarray(IDS), jnp.asarray(OTHERS)), strict=True):
        np.testing.assert_array_equal(own, other)
        assert own.shape == other.shape


def test_an_id_that_is_too_large_is_not_another_one() -> None:
    found = read(lambda ids: [ids], np.array([5, 2**32 + 5]))
    assert found is not None
    assert found[0].tolist() == [5, 2**32 + 5], "whoever looks whether it is in its table sees it"


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(lambda ids, others: [ids, ids + 1], id="computed"),
        pytest.param(lambda ids, others: [jnp.zeros(3, jnp.int32)], id="constant"),
        pytest.param(lambda ids, others: [ids.T], id="turned"),
        pytest.param(lambda ids, others: [ids.reshape(-1, order="F")], id="in another order"),
        pytest.param(lambda ids, others: [ids[:, 0]], id="cut"),
        pytest.param(lambda ids, others: [ids.astype("float32").astype("int32")], id="rounded"),
        pytest.param(lambda ids, others: [ids.astype("int8").astype("int32")], id="cut short"),
    ],
)
def test_what_is_computed_is_not(program: Callable[..., Any]) -> None:
    assert read(program, IDS, OTHERS) is None


@given(st.lists(st.integers(-(2**31), 2**31 - 1) | st.just(2**40)))
def test_different_ids_and_their_places_are_those_of_numpy(ids: list[int]) -> None:
    given_ids = np.array(ids, np.int64)
    found, places = unique_with_inverse(given_ids)
    expected, inverse = np.unique(given_ids, return_inverse=True)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(places, inverse)
    assert (found.dtype, places.dtype) == (np.int64, np.int32)


@pytest.mark.parametrize("num_rows", [0, 1, 8, 9, 300])
def test_rows_are_padded_by_zeros_and_begin_where_xla_takes_them_as_they_are(num_rows: int) -> None:
    rows = np.arange(num_rows * 3, dtype=np.float32).reshape(num_rows, 3) + 1
    found = [pad_to_power_of_two(rows) for _ in range(8)]
    for one in found:
        np.testing.assert_array_equal(one[:num_rows], rows)
        assert not one[num_rows:].any()
    assert {len(one) for one in found} == {{0: 8, 1: 8, 8: 8, 9: 16, 300: 512}[num_rows]}
    assert [one.ctypes.data % 64 for one in found] == [0] * 8
