"""Requests of the Open Inference Protocol, read and answered without a server."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import PIL.Image
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lockstep.errors import InvalidInputError, LockstepError
from lockstep.serving.instances import InputSpec, OutputSpec
from lockstep.serving.protocols.inference import describe_model, describe_server, read_question
from lockstep.serving.protocols.inference_paths import InferencePath, Verb, find_path
from lockstep.serving.protocols.questions import Content, Question
from lockstep.tensors import SIZE
from lockstep.tensors.datatypes import DATATYPES, datatype_of

INFER = InferencePath(verb=Verb.INFER, model="m", version="v1")
ROW = InputSpec(name="row", shape=(2,), dtype="float32")
IMAGE = InputSpec(name="image", shape=(2, 3), dtype="uint8", takes_pixels=True)
WORDS = InputSpec(name="words", shape=(None,), dtype="int32")
FLAG = InputSpec(name="flag", shape=(), dtype="bool")


def read(body: bytes, *specs: InputSpec, header: int | str | None = None, names: tuple[str, ...] = ("y",)) -> Question:
    length = None if header is None else str(header).encode("latin-1")
    return read_question(body, header_length=length, path=INFER, inputs=specs, output_names=names)


def body_of(document: Mapping[str, Any], *data: bytes) -> tuple[bytes, int]:
    head = json.dumps(document).encode()
    return b"".join((head, *data)), len(head)


def tensor(array: np.ndarray, name: str = "row", **more: Any) -> dict[str, Any]:
    return {"name": name, "shape": list(array.shape), "datatype": datatype_of(array.dtype), **more}


def binary(array: np.ndarray, name: str = "row") -> dict[str, Any]:
    return tensor(array, name, parameters={SIZE: array.nbytes})


def ask(document: Mapping[str, Any], *data: bytes, specs: tuple[InputSpec, ...] = (ROW,)) -> Question:
    body, header = body_of(document, *data)
    return read(body, *specs, header=header if data else None)


def refusal(document: Mapping[str, Any], *data: bytes, specs: tuple[InputSpec, ...] = (ROW,)) -> str:
    with pytest.raises(InvalidInputError) as caught:
        ask(document, *data, specs=specs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


TWO = np.array([[1.5, 2.0], [3.0, -4.25]], "float32")


def test_a_binary_tensor_of_the_inputs_own_type_is_not_copied() -> None:
    body, header = body_of({"inputs": [binary(TWO)]}, TWO.tobytes())
    array = read(body, ROW, header=header).arrays["row"]
    np.testing.assert_array_equal(array, TWO)
    assert np.shares_memory(array, np.frombuffer(body, np.uint8))


@pytest.mark.parametrize("data", [TWO.tolist(), TWO.reshape(-1).tolist()])
def test_the_data_of_json_may_be_nested_or_not(data: list[Any]) -> None:
    np.testing.assert_array_equal(ask({"inputs": [tensor(TWO, data=data)]}).arrays["row"], TWO)


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(st.data())
def test_all_numbers_come_as_they_were_sent(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(list(DATATYPES.values())))
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=4))
    array = data.draw(hnp.arrays(dtype, shape))
    spec = InputSpec(name="row", shape=shape[1:], dtype=dtype.name)
    found = ask({"inputs": [binary(array)]}, array.tobytes(), specs=(spec,)).arrays["row"]
    assert found.dtype == dtype
    assert found.tobytes() == array.tobytes(), "NaN and infinity too"
    if np.isfinite(array).all():
        found = ask({"inputs": [tensor(array, data=array.tolist())]}, specs=(spec,)).arrays["row"]
        np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("dtype", ["float64", "float16", "int64", "uint8"])
def test_other_numbers_are_converted_if_all_of_them_fit(dtype: str) -> None:
    array = np.array([[1, 2], [3, 4]], dtype)
    for request in (
        ask({"inputs": [binary(array)]}, array.tobytes()),
        ask({"inputs": [tensor(array, data=[1, 2, 3, 4])]}),
    ):
        assert request.arrays["row"].dtype == np.float32
        np.testing.assert_array_equal(request.arrays["row"], array)


def test_infinity_and_nan_are_floats_of_every_size() -> None:
    array = np.array([[np.inf, np.nan]])
    np.testing.assert_array_equal(ask({"inputs": [binary(array)]}, array.tobytes()).arrays["row"], array)


def test_several_inputs_come_in_any_order_and_are_returned_in_the_models() -> None:
    words, flag = np.array([[7, 8, 9]], "int32"), np.array([True])
    document = {"inputs": [binary(flag, "flag"), tensor(TWO[:1], "row", data=[1.5, 2]), binary(words, "words")]}
    arrays = ask(document, flag.tobytes(), words.tobytes(), specs=(ROW, WORDS, FLAG)).arrays
    assert list(arrays) == ["row", "words", "flag"], "requests are batched by the shapes in this order"
    np.testing.assert_array_equal(arrays["words"], words)
    np.testing.assert_array_equal(arrays["flag"], flag)


def test_the_name_of_the_only_input_may_be_left_out() -> None:
    entry = binary(TWO)
    del entry["name"]
    np.testing.assert_array_equal(ask({"inputs": [entry]}, TWO.tobytes()).arrays["row"], TWO)
    assert refusal({"inputs": [entry]}, TWO.tobytes(), specs=(ROW, FLAG)).startswith(
        "inputs[0]: the model has no such input; allowed: row, flag"
    )


def _elements(*contents: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(content)) + content for content in contents)


def test_bytes_are_image_files_or_raw_pixels() -> None:
    pixels = np.arange(6, dtype=np.uint8).reshape(2, 3)
    file = io.BytesIO()
    PIL.Image.fromarray(pixels).save(file, "png")
    data = _elements(file.getvalue(), pixels.tobytes())
    for shape in ([2], [2, 1]):
        entry = {"name": "image", "shape": shape, "datatype": "BYTES", "parameters": {SIZE: len(data)}}
        found = ask({"inputs": [entry]}, data, specs=(IMAGE,)).arrays["image"]
        np.testing.assert_array_equal(found, [pixels, pixels])


@pytest.mark.parametrize(
    ("shape", "data", "message"),
    [
        ([2], _elements(b"abcdef"), "input image: the data does not consist of 2 elements; received '1 of them, and 0"),
        ([1], _elements(b"abcdef") + b"x", "received '1 of them, and 1 further bytes'"),
        ([1], struct.pack("<I", 2**32 - 1) + b"abc", "received '0 of them, and 7 further bytes'"),
        ([2**62], _elements(b"abcdef"), "does not consist of 4611686018427387904 elements"),
        ([1, 2], _elements(b"abcdef"), "input image: shape of BYTES; received [1, 2]; allowed: [any], or [any, 1]"),
        ([1], _elements(b"abc"), "input image[0]: bytes; received '3 bytes'; allowed: 6 bytes, the raw values of"),
    ],
)
def test_bytes_that_are_not_what_they_should_be_are_said(shape: list[int], data: bytes, message: str) -> None:
    entry = {"name": "image", "shape": shape, "datatype": "BYTES", "parameters": {SIZE: len(data)}}
    assert message in refusal({"inputs": [entry]}, data, specs=(IMAGE,))


def test_bytes_are_refused_by_an_input_that_takes_no_images() -> None:
    data = _elements(b"seven")
    entry = {"name": "row", "shape": [1], "datatype": "BYTES", "parameters": {SIZE: len(data)}}
    assert refusal({"inputs": [entry]}, data) == "input row[0]: bytes; allowed: float32 of shape [2] as numbers"
    text = {"name": "row", "shape": [1], "datatype": "BYTES", "data": ["seven"]}
    assert refusal({"inputs": [text]}) == "input row: BYTES as JSON; allowed: binary data, with binary_data_size"


FLOATS = np.zeros((1, 2), "float32")


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "the request; received []; allowed: an object with id, model_name"),
        ({"inptus": []}, "the request: unknown key inptus; allowed: id, model_name, model_version, parameters, inputs"),
        ({}, "inputs; allowed: a list of one tensor or more"),
        ({"inputs": []}, "inputs; received []; allowed: a list of one tensor or more"),
        ({"inputs": [7]}, "inputs[0]; received 7; allowed: an object with name, shape, datatype"),
        ({"id": 7}, "id; received 7; allowed: text"),
        ({"model_name": "n"}, "model_name; received 'n'; allowed: m, as in the path; or leave it out"),
        ({"model_version": "v2"}, "model_version; received 'v2'; allowed: v1, as in the path; or leave it out"),
        (
            {"parameters": {"timeout": 7}},
            "the request: there is no parameter timeout; allowed: binary_data_output; send",
        ),
        (
            {"parameters": {"binary_data_output": 1}},
            "the request: parameter binary_data_output; received 1; allowed: true",
        ),
        ({"parameters": [7]}, "the request: parameters; received [7]; allowed: an object"),
        ({"inputs": [tensor(FLOATS, data=[0, 0], parameters={"x": 1})]}, "input row: there is no parameter x; allowed"),
        ({"inputs": [tensor(FLOATS, "rwo", data=[0, 0])]}, "inputs[0]: the model has no such input; received 'rwo'"),
        ({"inputs": [tensor(FLOATS, data=[0, 0])] * 2}, "inputs[1]: input row is there twice"),
        (
            {"inputs": [{**tensor(FLOATS), "shape": [1, 3], "data": [0, 0, 0]}]},
            "input row: shape; received [1, 3]; allow",
        ),
        (
            {"inputs": [{**tensor(FLOATS), "shape": [-1, 2]}]},
            "input row: shape; received [-1, 2]; allowed: a list of num",
        ),
        ({"inputs": [{**tensor(FLOATS), "shape": [True, 2]}]}, "input row: shape; received [True, 2]"),
        ({"inputs": [{**tensor(FLOATS), "shape": [0, 2], "data": []}]}, "input row: shape; received [0, 2]"),
        ({"inputs": [{**tensor(FLOATS), "shape": []}]}, "input row: shape; received []"),
        ({"inputs": [{**tensor(FLOATS), "shape": 2}]}, "input row: shape; received 2"),
        (
            {"inputs": [{**tensor(FLOATS), "datatype": "BF16", "data": [0, 0]}]},
            "input row: datatype; received 'BF16'; all",
        ),
        (
            {"inputs": [{**tensor(FLOATS), "datatype": ["FP32"], "data": [0, 0]}]},
            "input row: datatype; received ['FP32']",
        ),
        (
            {"inputs": [{**tensor(FLOATS), "datatype": "BOOL", "data": [True, False]}]},
            "input row: its values are not num",
        ),
        (
            {"inputs": [{**tensor(FLOATS), "datatype": "INT8", "data": [0, 128]}]},
            "input row: a value does not fit int8; re",
        ),
        ({"inputs": [tensor(FLOATS)]}, "input row: data; allowed: a list of 2 values"),
        ({"inputs": [tensor(FLOATS, data=[1])]}, "input row: data; received '1 values'; allowed: a list of 2 values"),
        ({"inputs": [tensor(FLOATS, data=[1, [2]])]}, "input row: data; allowed: a list of 2 values"),
        (
            {"inputs": [tensor(FLOATS, data=["1", "2"])]},
            "input row: its values are not numbers; received 'text, or objec",
        ),
        ({"outputs": {}}, "outputs; received {}; allowed: a list of objects"),
        ({"outputs": [{"name": "z"}]}, "outputs[0]: the model has no such output; received 'z'; allowed: y"),
        ({"outputs": [{"name": "y"}, {"name": "y"}]}, "outputs[1]: output y is there twice"),
        (
            {"outputs": [{"name": "y", "parameters": {"classification": 3}}]},
            "output y: there is no parameter classification; allowed: binary_data; leave it out",
        ),
    ],
)
def test_what_a_request_must_not_be_is_said_in_one_line(document: Any, message: str) -> None:
    assert refusal(document).startswith(message)


@pytest.mark.parametrize(
    ("entry", "data", "message"),
    [
        (
            binary(FLOATS),
            b"1234567",
            "input row: binary_data_size; received 8; allowed: 0 to 7, the bytes that are left",
        ),
        (binary(FLOATS), b"123456789", "the body is longer than the tensors; received '1 further bytes'"),
        (tensor(FLOATS, parameters={SIZE: -1}), b"", "input row: binary_data_size; received -1; allowed: 0 to 0"),
        (
            tensor(FLOATS, parameters={SIZE: 4}),
            b"1234",
            "input row: binary_data_size; received 4; allowed: 8, the size of",
        ),
        (
            tensor(FLOATS, parameters={SIZE: True}),
            b"",
            "input row: parameter binary_data_size; received True; allowed: a n",
        ),
        (tensor(FLOATS, parameters={SIZE: "8"}), b"12345678", "input row: parameter binary_data_size; received '8'"),
        (tensor(FLOATS, parameters={SIZE: 8}, data=[0, 0]), b"12345678", "input row: it has data and binary_data_size"),
        (binary(np.float64([[1e39, 0]])), np.float64([[1e39, 0]]).tobytes(), "input row: a value does not fit float32"),
        (
            {"name": "row", "shape": [2**62, 2], "datatype": "FP32", "parameters": {SIZE: 0}},
            b"",
            "input row: binary_data_size; received 0; allowed: 36893488147419103232, the size of FP32",
        ),
    ],
)
def test_binary_data_has_to_be_what_the_tensors_say(entry: dict[str, Any], data: bytes, message: str) -> None:
    body, header = body_of({"inputs": [entry]}, data)
    with pytest.raises(InvalidInputError) as caught:
        read(body, ROW, header=header)
    assert str(caught.value).startswith(message)


def test_a_byte_of_bool_is_0_or_1() -> None:
    entry = {"name": "flag", "shape": [2], "datatype": "BOOL", "parameters": {SIZE: 2}}
    message = "input flag: a byte of BOOL; received 7; allowed: 0 or 1"
    assert refusal({"inputs": [entry]}, b"\x01\x07", specs=(FLAG,)) == message


def test_the_inputs_have_one_number_of_instances_and_none_is_missing() -> None:
    document = {
        "inputs": [tensor(TWO, data=TWO.tolist()), {"name": "flag", "shape": [1], "datatype": "BOOL", "data": [True]}]
    }
    assert refusal(document, specs=(ROW, FLAG)).startswith("the inputs have different numbers of instances; received {")
    assert refusal({"inputs": document["inputs"][:1]}, specs=(ROW, FLAG)).startswith("input flag is missing")


@pytest.mark.parametrize("header", ["", "-1", "1e2", "9999", "٣", "+4", "12 ", "9" * 5000])
def test_the_length_of_the_json_is_a_number_within_the_body(header: str) -> None:
    with pytest.raises(InvalidInputError, match=r"^inference-header-content-length; received"):
        read_question(b'{"inputs": []}', header_length=header.encode(), path=INFER, inputs=[ROW], output_names=["y"])


def test_a_length_that_cuts_the_json_is_named() -> None:
    with pytest.raises(InvalidInputError, match=r"not JSON: .*; check the header inference-header-content-length"):
        read(b'{"inputs": []}', ROW, header=5)


def parts(content: Content) -> tuple[dict[str, Any], bytes]:
    headers = dict(content.headers)
    length = int(headers.get(b"inference-header-content-length", len(content.body)))
    return json.loads(content.body[:length]), content.body[length:]


OUTPUTS = {"y": np.array([[1.5, np.nan], [np.inf, 4]], "float32"), "n": np.array([7, 8], "int32")}


def _answer(document: Mapping[str, Any]) -> Content:
    body, _ = body_of({"inputs": [tensor(TWO, data=TWO.tolist())], **document})
    return read(body, ROW, names=("y", "n")).write(OUTPUTS)


def test_outputs_are_json_unless_asked_for_in_binary() -> None:
    content = _answer({"id": "42"})
    document, rest = parts(content)
    assert document == {
        "model_name": "m",
        "model_version": "v1",
        "id": "42",
        "outputs": [
            {"name": "y", "shape": [2, 2], "datatype": "FP32", "data": [1.5, "NaN", "Infinity", 4]},
            {"name": "n", "shape": [2], "datatype": "INT32", "data": [7, 8]},
        ],
    }
    assert (rest, dict(content.headers)) == (b"", {b"content-type": b"application/json"})


@pytest.mark.parametrize(
    ("document", "binary_names"),
    [
        ({"parameters": {"binary_data_output": True}}, ["y", "n"]),
        ({"outputs": [{"name": "n"}], "parameters": {"binary_data_output": True}}, ["n"]),
        ({"outputs": [{"name": "n", "parameters": {"binary_data": True}}, {"name": "y"}]}, ["n"]),
        (
            {
                "outputs": [{"name": "n", "parameters": {"binary_data": False}}, {"name": "y"}],
                "parameters": {"binary_data_output": True},
            },
            ["y"],
        ),
    ],
)
def test_outputs_are_chosen_by_name_and_binary_by_parameters(document: dict[str, Any], binary_names: list[str]) -> None:
    content = _answer(document)
    found, rest = parts(content)
    assert dict(content.headers)[b"content-type"] == b"application/octet-stream"
    assert [output["name"] for output in found["outputs"]] == [o["name"] for o in document.get("outputs", [])] or [
        "y",
        "n",
    ]
    for output in found["outputs"]:
        array = OUTPUTS[output["name"]]
        if output["name"] in binary_names:
            size = output["parameters"][SIZE]
            assert "data" not in output
            assert rest[:size] == array.tobytes()
            rest = rest[size:]
        else:
            assert len(output["data"]) == array.size
    assert rest == b""


def test_a_model_describes_its_tensors_under_the_name_of_the_path() -> None:
    outputs = [OutputSpec(name="y", shape=(None,), dtype="float32")]
    found = describe_model(find_path("/v2/models/m/versions/v1") or INFER, inputs=[IMAGE, FLAG], outputs=outputs)
    assert json.loads(found.body) == {
        "name": "m",
        "versions": ["v1"],
        "platform": "keras",
        "inputs": [
            {"name": "image", "datatype": "UINT8", "shape": [-1, 2, 3]},
            {"name": "flag", "datatype": "BOOL", "shape": [-1]},
        ],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, -1]}],
    }
    path = find_path("/v2/models/m")
    assert path is not None
    assert "versions" not in json.loads(describe_model(path, inputs=[FLAG], outputs=outputs).body)


@pytest.mark.parametrize(
    ("path", "verb", "model", "version"),
    [
        ("/v2", Verb.SERVER, "", None),
        ("/v2/health/live", Verb.LIVE, "", None),
        ("/v2/health/ready", Verb.READY, "", None),
        ("/v2/models/m", Verb.MODEL, "m", None),
        ("/v2/models/m/ready", Verb.MODEL_READY, "m", None),
        ("/v2/models/m/versions/v/ready", Verb.MODEL_READY, "m", "v"),
        ("/v2/models/m/infer", Verb.INFER, "m", None),
        ("/v2/models/m/versions/v/infer", Verb.INFER, "m", "v"),
    ],
)
def test_paths_are_those_of_the_protocol(path: str, verb: Verb, model: str, version: str | None) -> None:
    assert find_path(path) == InferencePath(verb=verb, model=model, version=version)
    assert find_path(f"{path}/") is None
    assert find_path(f"{path}/x") is None


def test_a_server_that_answers_is_live_and_ready() -> None:
    def said(path: str) -> Any:
        return json.loads(describe_server(find_path(path) or INFER).body)

    assert said("/v2/health/live") == {"live": True}
    assert said("/v2/health/ready") == {"ready": True}
    assert said("/v2/models/m/ready") == {"name": "m", "ready": True}
    assert said("/v2")["extensions"] == ["binary_tensor_data"]


NUMBERS = st.integers(-3, 5) | st.sampled_from([2**31, 2**62, 2**63, 2**64, -(2**63)])
SCALARS = st.none() | st.booleans() | NUMBERS | st.floats() | st.text(max_size=4)
NAMES = st.sampled_from(["row", "flag", "words", "image", "y", ""]) | st.text(max_size=3)
PARAMETERS = st.dictionaries(
    st.sampled_from([SIZE, "binary_data", "binary_data_output", "timeout"]) | st.text(max_size=3), SCALARS, max_size=2
)
TENSORS = st.fixed_dictionaries(
    {},
    optional={
        "name": NAMES,
        "shape": st.lists(NUMBERS | SCALARS, max_size=4) | SCALARS,
        "datatype": st.sampled_from([*DATATYPES, "BYTES", "BF16"]) | SCALARS,
        "parameters": st.fixed_dictionaries({SIZE: NUMBERS}) | PARAMETERS | SCALARS,
        "data": st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4), max_leaves=8),
    },
)
REQUESTS = st.fixed_dictionaries(
    {"inputs": st.lists(TENSORS, max_size=3) | SCALARS},
    optional={
        "id": SCALARS,
        "outputs": st.lists(st.fixed_dictionaries({"name": NAMES}, optional={"parameters": PARAMETERS}), max_size=2),
        "parameters": PARAMETERS | SCALARS,
    },
)


def _refusal_of(body: bytes, *specs: InputSpec, header: int | None) -> LockstepError | None:
    """Returns the error of a request; None if it was read, as the model's inputs are."""
    try:
        question = read(body, *specs, header=header)
    except LockstepError as error:
        return error
    assert [array.ndim - 1 for array in question.arrays.values()] == [len(spec.shape) for spec in specs]
    return None


def _check_read_or_refused(body: bytes, *specs: InputSpec, header: int | None) -> None:
    error = _refusal_of(body, *specs, header=header)
    assert error is None or error.http_status < 500
    assert "\n" not in str(error)


@settings(max_examples=250, deadline=None, derandomize=True, database=None)
@given(REQUESTS, st.binary(max_size=40), st.none() | st.integers(-9, 9))
def test_a_request_that_nobody_thought_of_is_read_or_refused(
    document: dict[str, Any], data: bytes, lie: int | None
) -> None:
    body, header = body_of(document, data)
    for specs in ((ROW,), (IMAGE,), (WORDS, FLAG)):
        _check_read_or_refused(body, *specs, header=None if lie is None else header + lie)


@settings(max_examples=250, deadline=None, derandomize=True, database=None)
@given(st.integers(0, 200), st.integers(0, 255), st.integers(0, 200), st.integers(-3, 3))
def test_a_request_that_was_damaged_is_read_or_refused(cut: int, byte: int, place: int, lie: int) -> None:
    words, flag = np.array([[7, 8, 9]], "int32"), np.array([True])
    whole, header = body_of({"inputs": [binary(words, "words"), binary(flag, "flag")]}, words.tobytes(), flag.tobytes())
    damaged = bytearray(whole[: len(whole) - cut % len(whole)])
    damaged[place % len(damaged)] = byte
    _check_read_or_refused(bytes(damaged), WORDS, FLAG, header=header + lie)
