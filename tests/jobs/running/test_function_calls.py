"""The call of a function, and its value, travel as JSON: unchanged, or refused by name."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.errors import CorruptDataError, InvalidInputError
from lockstep.jobs.running.function_calls import (
    MAX_CALL_BYTES,
    MAX_RESULT_BYTES,
    FunctionCall,
    decode_result,
    encode_result,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(JSON, max_size=3), st.dictionaries(st.text(), JSON, max_size=3))
def test_a_call_and_a_value_arrive_as_they_were_sent(args: list[Any], kwargs: dict[str, Any]) -> None:
    call = FunctionCall(args=args, kwargs=kwargs, strategy="mirrored")
    assert FunctionCall.from_text(call.to_text()) == call
    assert decode_result(encode_result([args, kwargs])) == ([args, kwargs], None)


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({"data": np.zeros(2)}, "data is not a value of JSON; received 'ndarray'"),
        ({"size": (2, 3)}, "size is not a value of JSON; received 'tuple'"),
        ({"rates": [0.1, float("inf")]}, "rates[1] is not a finite number; received inf"),
        ({"by": {"a": {3: 1}}}, "by['a'] has a key that is not text; received 3"),
        ({"rate": np.float64(0.1)}, "rate is not a value of JSON; received 'float64'"),
        ({"flag": np.bool_(True)}, "flag is not a value of JSON"),
    ],
)
def test_an_argument_that_json_does_not_have_is_named(kwargs: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        FunctionCall(kwargs=kwargs).to_text()
    assert str(caught.value).startswith(said)


def test_arguments_that_no_process_could_be_given_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"too large.*put data into a bucket"):
        FunctionCall(args=["x" * MAX_CALL_BYTES]).to_text()
    nested: list[Any] = []
    for _ in range(100):
        nested = [nested]
    with pytest.raises(InvalidInputError, match="nested too deeply"):
        FunctionCall(args=[nested]).to_text()


@pytest.mark.parametrize("text", ["", "3", "[]", '{"args": 3}', '{"kwargs": [1]}'])
def test_a_text_that_is_no_call_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="the arguments of a function"):
        FunctionCall.from_text(text)


def test_a_value_becomes_json_or_says_why_not() -> None:
    value = {"loss": np.float32(0.5), "shape": (3, np.int64(4)), "ok": np.bool_(True)}
    assert decode_result(encode_result(value)) == ({"loss": 0.5, "shape": [3, 4], "ok": True}, None)
    for value, said in (
        (np.zeros(3), "the returned value is not a value of JSON; received 'ndarray'"),
        ({"loss": float("nan")}, "the returned value['loss'] is not a finite number"),
        ("x" * MAX_RESULT_BYTES, "the returned value has 1048"),
    ):
        stored, problem = decode_result(encode_result(value))
        assert stored is None
        assert problem is not None
        assert problem.startswith(said)
    for data in (b"", b"[]", json.dumps({"other": 1}).encode()):
        with pytest.raises(CorruptDataError):
            decode_result(data)
