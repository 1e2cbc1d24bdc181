from typing import Any

import numpy as np
import pytest

from lockstep.data import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    RawFeature,
    VarLenFeature,
    decode_example,
    encode_example,
    parse_batch,
)
from lockstep.data.examples.features import feature_from_json
from lockstep.errors import CorruptDataError, InvalidInputError

SPEC = {
    "image": RawFeature((2, 3), np.uint8),
    "label": FixedLenFeature((), np.int64),
    "weights": FixedLenFeature((2,), np.float32),
}


def make_record(number: int, **changed: Any) -> bytes:
    image = np.arange(6, dtype=np.uint8) + number
    return encode_example({"image": image.tobytes(), "label": number, "weights": [number, 0.5]} | changed)


def test_a_batch_becomes_arrays() -> None:
    arrays = parse_batch([make_record(number) for number in range(4)], SPEC)
    assert {name: (array.shape, str(array.dtype)) for name, array in arrays.items()} == {
        "image": ((4, 2, 3), "uint8"),
        "label": ((4,), "int64"),
        "weights": ((4, 2), "float32"),
    }
    assert arrays["image"][3].tolist() == [[3, 4, 5], [6, 7, 8]]
    assert arrays["label"].tolist() == [0, 1, 2, 3]
    assert arrays["weights"].tolist() == [[0, 0.5], [1, 0.5], [2, 0.5], [3, 0.5]]
    for array in arrays.values():
        array[0] = 9  # what a caller gets, it may change
    assert arrays["image"][0].tolist() == [[9, 9, 9], [9, 9, 9]]


def test_an_empty_batch_has_shapes() -> None:
    arrays = parse_batch([], SPEC)
    assert [array.shape for array in arrays.values()] == [(0, 2, 3), (0,), (0, 2)]


def test_bytes_are_objects() -> None:
    records = [encode_example({"name": name}) for name in ("a", "bc")]
    array = parse_batch(records, {"name": FixedLenFeature((), bytes)})["name"]
    assert array.dtype == object
    assert array.tolist() == [b"a", b"bc"]
    pair = parse_batch([encode_example({"p": [b"x", b"yz"]})], {"p": FixedLenFeature([2], bytes)})["p"]
    assert pair.tolist() == [[b"x", b"yz"]]


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, bool])
def test_values_are_cast_to_the_wanted_kind(dtype: Any) -> None:
    array = parse_batch([encode_example({"x": 1})], {"x": FixedLenFeature((), dtype)})["x"]
    assert array.dtype == dtype
    assert array.tolist() == [1]


def test_raw_arrays_of_other_types_are_little_endian() -> None:
    feature = RawFeature((2,), np.int16)
    assert feature.encode(np.array([1, 258], ">i2")) == b"\x01\x00\x02\x01"
    array = parse_batch([encode_example({"x": b"\x01\x00\x02\x01"})], {"x": feature})["x"]
    assert array.tolist() == [[1, 258]]


def test_a_default_stands_in_for_a_missing_feature() -> None:
    spec = {"x": FixedLenFeature((), np.int64, 7), "y": FixedLenFeature((2,), np.float32, default_value=[1, 2])}
    arrays = parse_batch([encode_example({"x": 1}), encode_example({"y": [3.0, 4.0]})], spec)
    assert arrays["x"].tolist() == [1, 7]
    assert arrays["y"].tolist() == [[1, 2], [3, 4]]
    one_for_all = parse_batch([b""], {"z": FixedLenFeature((2,), np.int64, 5)})["z"]
    assert one_for_all.tolist() == [[5, 5]]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"label": [1, 2]}, "feature 'label' of record 1 of the batch does not fit the specification"),
        ({"label": []}, "received '0 values of no kind'; allowed: 1 values of int64"),
        ({"label": 1.5}, "received '1 values of float32'; allowed: 1 values of int64"),
        ({"weights": [1.0]}, "received '1 values of float32'; allowed: 2 values of float32"),
        ({"image": b"12345"}, "feature 'image': the bytes of record 1 of the batch do not fit the feature; "),
        ({"image": b"12345"}, "received '5 bytes'; allowed: 6 bytes: uint8 of shape (2, 3)"),
        ({"image": [b"123456", b"1"]}, "received '2 values of bytes'; allowed: 1 values of bytes"),
    ],
)
def test_what_does_not_fit_is_named(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_batch([make_record(0), make_record(1, **changed)], SPEC)
    assert message in str(caught.value)


def test_short_and_long_bytes_do_not_make_up_for_each_other() -> None:
    with pytest.raises(InvalidInputError, match="the bytes of record 0"):
        parse_batch([make_record(0, image=b"12345"), make_record(1, image=b"1234567")], SPEC)


def test_a_missing_feature_is_named() -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_batch([encode_example({"lable": 1, "image": b""})], {"label": FixedLenFeature((), np.int64)})
    assert str(caught.value) == (
        "record 0 of the batch lacks the feature 'label'; allowed: image, lable; did you mean 'lable'?"
    )


def test_what_is_no_example_is_reported() -> None:
    with pytest.raises(CorruptDataError, match="record 1 of the batch is not"):
        parse_batch([make_record(0), b"\xff\xff"], SPEC)


@pytest.mark.parametrize("feature", [*SPEC.values(), FixedLenFeature((2, 2), bytes), RawFeature((), "float64")])
def test_a_description_comes_back_from_json(feature: Any) -> None:
    assert feature_from_json(feature.to_json()) == feature


@pytest.mark.parametrize(
    "document",
    [{}, {"type": "other", "shape": [], "dtype": "int64"}, {"type": "fixed", "shape": 3, "dtype": "int64"}]
    + [{"type": "raw", "shape": [], "dtype": dtype} for dtype in ("nonsense", "object")],
)
def test_a_description_that_is_not_usable_is_reported(document: dict[str, Any]) -> None:
    with pytest.raises(CorruptDataError, match="a feature's description is not usable"):
        feature_from_json(document)


@pytest.mark.parametrize(
    ("feature", "value"),
    [
        (RawFeature((2,)), np.zeros(3, np.uint8)),
        (RawFeature((2,)), np.zeros(2, np.int64)),
        (RawFeature((2,)), b"123"),
        (FixedLenFeature((2,), np.int64), [1, 2, 3]),
    ],
)
def test_a_value_that_does_not_fit_is_not_encoded(feature: Any, value: Any) -> None:
    with pytest.raises(InvalidInputError, match="a value does not fit its feature"):
        feature.encode(value)


def test_a_feature_of_another_type_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="a feature's dtype; received 'complex128'"):
        FixedLenFeature((), complex)
    with pytest.raises(InvalidInputError, match="a raw feature's dtype; received 'object'"):
        RawFeature((), object)
    with pytest.raises(InvalidInputError, match="a default value does not fit its feature"):
        FixedLenFeature((2,), np.int64, [1, 2, 3])


@pytest.mark.parametrize(
    ("dtype", "value"), [(np.int8, 128), (np.int8, -129), (np.uint8, -1), (np.int32, 2**31), (np.uint64, -1)]
)
def test_an_integer_that_its_dtype_cannot_hold_is_no_other_number(dtype: type, value: int) -> None:
    records = [encode_example({"n": [1]}), encode_example({"n": [value]})]
    assert parse_batch(records[:1], {"n": FixedLenFeature((), dtype)})["n"].tolist() == [1]
    for feature in (FixedLenFeature((), dtype), VarLenFeature(dtype)):
        with pytest.raises(InvalidInputError, match=f"out of range of its feature's dtype; received {value}; allowed"):
            parse_batch(records, {"n": feature})
    assert parse_batch(records, {"n": FixedLenFeature((), np.int64)})["n"].tolist() == [1, value]


FLOATS = (np.float16, np.float32, np.float64)


@pytest.mark.parametrize("nothing", [[], (), np.array([]), np.array([], object)], ids=repr)
@pytest.mark.parametrize("dtype", [np.float32, np.int64, bytes])
def test_an_empty_list_is_of_the_type_that_is_asked_for(nothing: Any, dtype: Any) -> None:
    values = {
        "var": VarLenFeature(dtype),
        "ragged": RaggedFeature(dtype),
        "steps": FixedLenSequenceFeature((2,), dtype, allow_missing=True),
        "none": FixedLenFeature((0,), dtype),
    }
    found = parse_batch([encode_example(dict.fromkeys(values, nothing))], values)
    assert found["var"].values.dtype == found["ragged"].values.dtype == found["none"].dtype
    assert [found["var"].dense_shape.tolist(), found["ragged"].to_list()] == [[1, 0], [[]]]
    assert [found["steps"].shape, found["none"].shape] == [(1, 0, 2), (1, 0)]


@pytest.mark.parametrize("dtype", [np.float32, np.int64, bytes])
@pytest.mark.parametrize("make", [VarLenFeature, RaggedFeature, lambda dtype: FixedLenFeature((0,), dtype)])
def test_what_a_feature_encodes_of_nothing_has_its_type(make: Any, dtype: Any) -> None:
    feature = make(dtype)
    kind = decode_example(encode_example({"x": feature.encode([])}))["x"]
    assert (kind == []) if dtype is bytes else (kind.dtype == dtype)
    parse_batch([encode_example({"x": feature.encode([])})], {"x": feature})
    assert RawFeature((0,), np.uint8).encode([]) == b""


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "value",
    [1e300, [0.5, -1e300], np.array([1e39]), 10**400, 2**200],
    ids=lambda value: "" if isinstance(value, int) else str(value),
)
def test_a_float_that_a_record_cannot_hold_is_no_infinity(value: Any, dtype: Any) -> None:
    shape = np.shape(value)
    for feature in (FixedLenFeature(shape, dtype), VarLenFeature(dtype)):
        with pytest.raises(InvalidInputError, match="out of range of its feature's dtype"):
            encode_example({"x": feature.encode(value)})
    with pytest.raises(InvalidInputError, match="out of range of its feature's dtype"):
        FixedLenFeature((), np.float16, value)


def test_a_float_that_its_dtype_cannot_hold_is_not_read_as_an_infinity() -> None:
    records = [encode_example({"x": 1e6})] * 9
    with pytest.raises(InvalidInputError, match=r"feature 'x': a number is out of range .*; received 1000000.0"):
        parse_batch(records, {"x": FixedLenFeature((), np.float16)})
    assert (
        parse_batch([encode_example({"x": [np.inf, np.nan]})], {"x": FixedLenFeature((2,), np.float16)})["x"][0, 0]
        == np.inf
    )


@pytest.mark.parametrize("value", [2, -1])
def test_a_number_that_is_no_truth_value_is_not_read_as_one(value: int) -> None:
    with pytest.raises(InvalidInputError, match=f"out of range .*; received {value}; allowed: 0 to 1: bool"):
        FixedLenFeature((), bool).encode(value)
    with pytest.raises(InvalidInputError, match=f"out of range .*; received {value}; allowed: 0 to 1: bool"):
        parse_batch([encode_example({"x": value})], {"x": FixedLenFeature((), bool)})


@pytest.mark.parametrize(
    "values", [[np.uint64(2**63 - 1), -1], [np.uint64(5), np.int64(3)], np.array([2**40, -1], object)], ids=repr
)
def test_integers_of_several_types_stay_integers(values: Any) -> None:
    expected = [int(value) for value in values]
    for encoded in (values, VarLenFeature(np.int64).encode(values)):
        assert decode_example(encode_example({"x": encoded}))["x"].tolist() == expected


@pytest.mark.parametrize("value", [2**63, [2**63, -1], -(2**63) - 1, 2**70, np.array([2**63], np.uint64)], ids=repr)
def test_integers_beyond_int64_are_refused(value: Any) -> None:
    for feature in (VarLenFeature(np.int64), VarLenFeature(np.uint64)):
        with pytest.raises(InvalidInputError, match="a number is out of range of its feature's dtype; received"):
            encode_example({"x": feature.encode(value)})
    with pytest.raises(InvalidInputError, match="feature 'x' cannot be encoded: a number is out of range"):
        encode_example({"x": value})


def test_masked_values_are_not_written_as_what_stands_under_the_mask() -> None:
    masked = np.ma.masked_array([1, 2], [False, True])
    for encode in (
        VarLenFeature(np.int64).encode,
        RawFeature((2,), np.int64).encode,
        lambda x: encode_example({"x": x}),
    ):
        with pytest.raises(InvalidInputError, match="without masked values"):
            encode(masked)
        encode(np.ma.masked_array([1, 2]))


def test_rows_whose_places_do_not_fit_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="a number is out of range"):
        RaggedFeature(np.int64)._splits(np.array([2**31 - 1, 1]))
