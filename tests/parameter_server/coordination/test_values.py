"""Values travel as they are, and nothing else does."""

from __future__ import annotations

import json
import math
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.errors import CorruptDataError, InvalidInputError
from lockstep.parameter_server.coordination.values import decode, encode

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=20,
)


def travel(value: Any) -> Any:
    packed, arrays = encode(value, what="a value")
    return decode(json.loads(json.dumps(packed, allow_nan=False)), arrays)


@given(value=PLAIN)
def test_plain_values_arrive_as_they_were(value: Any) -> None:
    assert travel(value) == value
    assert repr(travel(value)) == repr(value), "a tuple is no list"


def test_arrays_arrive_with_their_kind_and_shape() -> None:
    value = {
        "a": np.arange(6, dtype=np.int16).reshape(2, 3),
        "b": [jnp.ones((2,), jnp.bfloat16), np.float32(2.5)],
        "n": (math.nan, -math.inf),
    }
    found = travel(value)
    np.testing.assert_array_equal(found["a"], value["a"])
    assert (found["a"].dtype, found["b"][0].dtype) == (np.int16, ml_dtypes.bfloat16)
    assert (found["b"][1].shape, float(found["b"][1])) == ((), 2.5)
    assert math.isnan(found["n"][0])
    assert found["n"][1] == -math.inf
    found["a"][0, 0] = 7  # a copy, its receiver's own


def test_arrays_are_as_they_were_when_they_were_given() -> None:
    value = np.zeros(3)
    packed, arrays = encode(value, what="a value")
    value[:] = 7
    np.testing.assert_array_equal(decode(packed, arrays), np.zeros(3))


def test_what_stays_where_it_is_is_stood_for() -> None:
    iterator = iter([1])
    packed, arrays = encode(
        (iterator, 1), what="arguments", refer=lambda value: ["dataset", 3] if value is iterator else None
    )
    assert decode(packed, arrays, resolve=tuple) == (("dataset", 3), 1)


class Thing:
    pass


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        pytest.param(
            Thing(), "an argument has something that cannot be sent; received 'Thing'; allowed: numbers", id="object"
        ),
        pytest.param([len], "received 'builtin_function_or_method'", id="function"),
        pytest.param({1: 2}, r"a dict whose keys are not strings; received \[1\]", id="keys"),
        pytest.param(np.array([Thing()]), "an array that cannot be sent; received 'object'", id="objects"),
        pytest.param(np.array(["a"]), "an array that cannot be sent; received '<U1'", id="texts"),
        pytest.param(
            np.zeros(2, np.complex64),
            "an array that cannot be sent; received 'complex64'; allowed: float16, .*; convert it",
            id="complex",
        ),
        pytest.param(np.zeros(2, "datetime64[s]"), r"received 'datetime64\[s\]'", id="times"),
        pytest.param(["\ud800"], "a text with a lone surrogate", id="half a character"),
        pytest.param({"\ud800": 1}, "a text with a lone surrogate", id="half a character as a key"),
        pytest.param(10**5000, "too large a number; allowed: 8192 bits", id="large"),
        pytest.param(
            [0.1234567] * 1_000_000,
            "an argument is too large, apart from its arrays; received '11,000,0.. bytes'; allowed: 7,340,032 bytes",
            id="long",
        ),
        pytest.param([np.zeros(1)] * 100_000, "an argument is too large, apart from its arrays", id="many arrays"),
        pytest.param(nested(40), "nested too deeply; allowed: 32 levels", id="deep"),
    ],
)
def test_what_cannot_travel_is_said(value: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        encode(value, what="an argument")


@pytest.mark.parametrize(
    "packed", [[], ["array", "9"], ["float", "1"], ["ref", 1], ["code", "x"], [["list"]]], ids=json.dumps
)
def test_what_is_no_value_is_refused(packed: Any) -> None:
    with pytest.raises(CorruptDataError):
        decode(packed, {})
