import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.data import decode_example, encode_example
from lockstep.errors import CorruptDataError, InvalidInputError

names = st.text(min_size=1, max_size=8)
values = st.one_of(
    st.lists(st.binary(max_size=20), min_size=1, max_size=5),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5),
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=5),
)


def test_known_wire_bytes() -> None:
    # Example{1: Features{1: entry{1: key, 2: Feature{1|2|3: list{1: values}}}}}, floats and integers packed.
    assert encode_example({"i": [1, 300]}).hex() == "0a0e0a0c0a016912071a050a0301ac02"
    assert encode_example({"f": 1.0}).hex() == "0a0f0a0d0a0166120812060a040000803f"
    assert encode_example({"b": b"xy"}).hex() == "0a0d0a0b0a016212060a040a027879"


def test_integers_that_are_not_packed_are_read_too() -> None:
    packed = encode_example({"i": [5, 6]})
    unpacked = bytes.fromhex("0a0d0a0b0a016912061a0408050806")
    assert packed != unpacked
    assert decode_example(unpacked)["i"].tolist() == [5, 6]  # type: ignore[union-attr]


@given(st.dictionaries(names, values, max_size=4))
def test_round_trip(example: dict[str, list[Any]]) -> None:
    decoded = decode_example(encode_example(example))
    assert list(decoded) == sorted(example)
    for name, value in example.items():
        found = decoded[name]
        assert (found if isinstance(found, list) else found.tolist()) == value


@given(st.dictionaries(names, values, max_size=4))
def test_the_same_values_give_the_same_bytes(example: dict[str, list[Any]]) -> None:
    assert encode_example(dict(reversed(example.items()))) == encode_example(example)


@pytest.mark.parametrize(
    ("value", "decoded"),
    [
        ("text", [b"text"]),
        (["a", b"b"], [b"a", b"b"]),
        (True, [1]),
        (np.uint8(7), [7]),
        (np.array([[1, 2], [3, 4]], np.int32), [1, 2, 3, 4]),
        (np.array([0.5], np.float64), [0.5]),
        (np.array([True, False]), [1, 0]),
        (np.array([b"x", b"y"]), [b"x", b"y"]),
        (np.array(["x", b"y"], object), [b"x", b"y"]),
        ([1, 2.5], [1.0, 2.5]),
        ([], []),
        (np.empty(0, np.float32), []),
        (bytearray(b"xy"), [b"xy"]),
    ],
)
def test_what_can_be_encoded(value: Any, decoded: list[Any]) -> None:
    found = decode_example(encode_example({"x": value}))["x"]
    assert list(found) == decoded


@pytest.mark.parametrize(
    "value", [None, {"a": 1}, [1, "a"], [[1, 2]], 2**63, [-1, 2**63], np.array([2**64 - 1], np.uint64), 1j]
)
def test_what_cannot_be_encoded_is_named(value: Any) -> None:
    with pytest.raises(InvalidInputError, match="feature 'x' cannot be encoded"):
        encode_example({"x": value})


def test_what_is_no_example_is_reported() -> None:
    with pytest.raises(CorruptDataError, match=r"the record is not a tf\.train\.Example"):
        decode_example(b"\xff\xff")


def test_it_lives_beside_a_message_of_the_same_name() -> None:
    # TensorFlow registers its own tensorflow.Example in protobuf's default pool, before or after this one.
    program = """
from google.protobuf import descriptor_pb2, descriptor_pool
file = descriptor_pb2.FileDescriptorProto(name="tensorflow/core/example/example.proto", package="tensorflow")
file.message_type.add(name="Example")
descriptor_pool.Default().Add(file)
from lockstep.data.examples.example import decode_example, encode_example
print(decode_example(encode_example({"x": 1}))["x"].tolist())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[1]"
