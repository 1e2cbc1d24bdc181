"""Between a request's JSON and arrays."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lockstep.errors import InvalidInputError
from lockstep.serving.instances import InputSpec, read_instances, read_request, write_response

IMAGE = InputSpec(name="image", shape=(2, 3), dtype="uint8")
RATE = InputSpec(name="rate", shape=(), dtype="float32")
WORDS = InputSpec(name="words", shape=(None,), dtype="int32")
FLAG = InputSpec(name="flag", shape=(1,), dtype="bool")


def b64(data: bytes) -> dict[str, str]:
    return {"b64": base64.b64encode(data).decode()}


def refusal(instances: list[object], *specs: InputSpec) -> str:
    with pytest.raises(InvalidInputError) as caught:
        read_instances(instances, specs=specs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_single_input_is_written_bare_by_name_or_as_bytes() -> None:
    value = [[1, 2, 3], [4, 5, 255]]
    arrays = read_instances([value, {"image": value}, b64(bytes([1, 2, 3, 4, 5, 255]))], specs=[IMAGE])
    assert arrays["image"].dtype == np.uint8
    np.testing.assert_array_equal(arrays["image"], [value] * 3)


def test_several_inputs_are_written_by_name() -> None:
    arrays = read_instances([{"rate": 0.5, "words": [1, 2]}, {"words": [3, 4], "rate": 1}], specs=[RATE, WORDS])
    np.testing.assert_array_equal(arrays["rate"], np.array([0.5, 1], "float32"))
    np.testing.assert_array_equal(arrays["words"], np.array([[1, 2], [3, 4]], "int32"))
    assert (arrays["rate"].dtype, arrays["words"].dtype) == (np.float32, np.int32)


def test_flags_are_true_and_false() -> None:
    np.testing.assert_array_equal(read_instances([[True], [False]], specs=[FLAG])["flag"], [[True], [False]])


def test_whole_floats_are_whole_numbers() -> None:
    np.testing.assert_array_equal(read_instances([[1.0, 2.0]], specs=[WORDS])["words"], [[1, 2]])


@pytest.mark.parametrize(
    ("instances", "specs", "message"),
    [
        ([[[1, 2, 3], [4, 5, 6]], [[1, 2]]], [IMAGE], "instances[1]: shape; received [1, 2]; allowed: [2, 3]"),
        ([[[1], [2, 3]]], [IMAGE], "instances[0]: its lists have different lengths; allowed: numbers of shape [2, 3]"),
        (
            [[["a", 2, 3], [4, 5, 6]]],
            [IMAGE],
            (
                "instances[0]: it contains values that are not numbers; received [['a', 2, 3], [4, 5, 6]]; "
                "allowed: uint8 of shape [2, 3]"
            ),
        ),
        ([None], [RATE], "instances[0]: it contains values that are not numbers"),
        ([True], [RATE], "instances[0]: it contains values that are not numbers"),
        ([[1]], [FLAG], "instances[0]: it contains values that are not true or false"),
        (
            [[[0, 0, 0], [0, 0, 256]]],
            [IMAGE],
            "instances[0]: a value does not fit uint8; received '0 to 256'; allowed: whole numbers from 0 to 255",
        ),
        ([[0.5]], [WORDS], "instances[0]: a value does not fit int32; received '0.5 to 0.5'"),
        ([[2**31]], [WORDS], "instances[0]: a value does not fit int32; received '2147483648 to 2147483648'"),
        ([1e39], [RATE], "instances[0]: a value does not fit float32"),
        ([float("inf")], [RATE], "instances[0]: a value does not fit float32"),
        (
            [b64(b"12345")],
            [IMAGE],
            "instances[0]: bytes; received '5 bytes'; allowed: 6 bytes, the raw values of shape [2, 3] in row-major",
        ),
        ([{"b64": "%%"}], [IMAGE], "instances[0]: not base64; received '%%'; allowed: standard base64"),
        (
            [{"b64": "_9j_" * 999}],
            [IMAGE],
            f"instances[0]: not base64; received '{'_9j_' * 10}... (3996 characters)'; all",
        ),
        (
            [{"b64": "data:,iVBO"}],
            [IMAGE],
            "instances[0]: not base64; received 'data:,iVBO'; allowed: standard base64: ",
        ),
        ([{"b64": 3}], [IMAGE], "instances[0]; received {'b64': 3}; allowed: numbers, or"),
        ([b64(b"abcd")], [RATE], "instances[0]: bytes; allowed: float32 of shape [] as numbers"),
        (
            [b64(b"ab")],
            [InputSpec(name="x", shape=(None,), dtype="uint8")],
            "instances[0]: bytes do not say their shape; allowed: numbers of [any]",
        ),
        (
            [[1, 2], [1, 2, 3]],
            [WORDS],
            (
                "instances[1]: its shape is not that of the first instance; received [3]; "
                "allowed: [2], or send it in a separate request"
            ),
        ),
        ([{"imgae": 1}], [IMAGE], "instances[0]: the model has no input imgae; allowed: image; did you mean 'image'?"),
        ([{"rate": 1}], [RATE, WORDS], "instances[0]: input words is missing; received ['rate']"),
        ([3], [RATE, WORDS], "instances[0]; received 3; allowed: an object with the inputs rate, words"),
        ([{"rate": "x", "words": [1]}], [RATE, WORDS], "instances[0].rate: it contains values that are not numbers"),
    ],
)
def test_an_instance_that_does_not_fit_is_named(instances: list[object], specs: list[InputSpec], message: str) -> None:
    assert refusal(instances, *specs).startswith(message)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the body is not JSON"),
        (b"\xff", "the body is not JSON"),
        (b'{"instances": [NaN]}', "the body is not JSON: "),
        (b"[" * 100_000, "the body is not JSON"),
        (b"[]", "the body has no instances; received 'list'"),
        (b'{"instanses": []}', "the body has no instances; received ['instanses']"),
        (b'{"instances": {}}', "instances; received {}; allowed: a list of one instance or more"),
        (b'{"instances": []}', "instances; received []; allowed: a list of one instance or more"),
        (b'{"instances": [1], "extra": 2}', "unknown key extra"),
    ],
)
def test_a_body_without_instances_is_refused(body: bytes, message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        read_request(body)
    assert str(caught.value).startswith(message)


@given(
    hnp.arrays(
        np.float32,
        hnp.array_shapes(min_dims=1),
        elements=st.floats(-(2.0**99), 2.0**99, width=32, allow_subnormal=False),
    )
)
def test_numbers_go_through_json_unchanged(array: np.ndarray) -> None:
    spec = InputSpec(name="x", shape=array.shape[1:], dtype="float32")
    response = json.loads(write_response({"y": array}, names=["y"]))
    instances = read_request(json.dumps({"instances": response["predictions"]}).encode())
    np.testing.assert_array_equal(read_instances(instances, specs=[spec])["x"], array)


def test_several_outputs_are_written_by_name() -> None:
    outputs = {"label": np.array([3, 4]), "score": np.array([[0.5], [0.25]])}
    assert json.loads(write_response(outputs, names=["label", "score"])) == {
        "predictions": [{"label": 3, "score": [0.5]}, {"label": 4, "score": [0.25]}]
    }


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numbers_that_json_does_not_have_are_strings(dtype: str) -> None:
    outputs = {"y": np.array([[1.5, np.nan], [np.inf, -np.inf]], dtype), "n": np.array([1, 2])}
    assert json.loads(write_response(outputs, names=["y"])) == {
        "predictions": [[1.5, "NaN"], ["Infinity", "-Infinity"]]
    }
    assert json.loads(write_response(outputs, names=["n", "y"]))["predictions"][1] == {
        "n": 2,
        "y": ["Infinity", "-Infinity"],
    }
