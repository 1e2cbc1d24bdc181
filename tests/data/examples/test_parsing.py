"""Whatever way a batch is parsed, it gives what the protocol buffers' own parser gives."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.examples.wire import UNUSUAL, entry, example, field

from lockstep.data import (
    ExampleParser,
    FixedLenFeature,
    RaggedArray,
    RaggedFeature,
    RawFeature,
    RecordBatch,
    SparseArray,
    VarLenFeature,
    decode_example,
    encode_example,
    parse_batch,
    parse_example,
)
from lockstep.data.examples.example import Example
from lockstep.data.examples.record_layout import read_layout
from lockstep.errors import CorruptDataError, InvalidInputError

INTEGERS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(0, 200))
LISTS = {
    "numbers": st.lists(INTEGERS, max_size=4),
    "weights": st.lists(st.floats(width=32, allow_nan=False), max_size=3),
    "names": st.lists(st.binary(max_size=3), max_size=3),
    "other": st.lists(INTEGERS, max_size=2),
}
RAGGED = {
    "numbers": RaggedFeature(np.int64),
    "weights": RaggedFeature(np.float32, row_splits_dtype=np.int64),
    "names": RaggedFeature(bytes),
    "absent": RaggedFeature(np.int64),
}


def encode(values: dict[str, list[Any]]) -> bytes:
    dtypes = {"numbers": np.int64, "weights": np.float32, "names": "S", "other": np.int64}
    return encode_example({name: value or np.empty(0, dtypes[name]) for name, value in values.items()})


@st.composite
def batches(draw: st.DrawFn) -> list[dict[str, list[Any]]]:
    """Records most of which are one of a few, with other values of the same kind, and some their own."""
    kinds = draw(st.lists(st.fixed_dictionaries({}, optional=LISTS), min_size=1, max_size=3))
    records = draw(st.lists(st.sampled_from(kinds), max_size=30))
    small = st.integers(0, 127)
    return [
        {
            name: [draw(small) if isinstance(item, int) and 0 <= item < 128 else item for item in values]
            for name, values in record.items()
        }
        for record in records
    ]


@settings(max_examples=300, deadline=None)
@given(batches())
def test_any_batch_gives_what_its_records_have(batch: list[dict[str, list[Any]]]) -> None:
    arrays = parse_batch([encode(record) for record in batch], RAGGED)
    for name, found in arrays.items():
        assert isinstance(found, RaggedArray)
        expected = [record.get(name, []) for record in batch]
        if name == "weights":
            expected = [np.array(row, np.float32).tolist() for row in expected]
        assert found.to_list() == expected
    assert arrays["names"].values.dtype == object
    assert (arrays["numbers"].row_splits.dtype, arrays["weights"].row_splits.dtype) == (np.int32, np.int64)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=40), st.integers(0, 200))
def test_bytes_that_are_no_record_are_never_a_layout_of_their_own(data: bytes, place: int) -> None:
    """What is read here the protocol buffers' parser reads alike; all else is left to it."""
    good = bytearray(encode({"numbers": [1, 300, -1], "weights": [0.5], "names": [b"ab", b""]}))
    good[place % len(good)] ^= 1 + len(data)
    for record in (data, bytes(good)):
        layout = read_layout(record)
        if layout is None:
            continue
        decoded = decode_example(record)
        assert layout.features.keys() | layout.unset == decoded.keys()
        spec = {name: _ragged(places.kind) for name, places in layout.features.items() if name}
        found = parse_batch([record] * 5, spec) if spec else {}
        for name, rows in found.items():
            np.testing.assert_array_equal(rows.to_list(), [list(decoded[name])] * 5)


def _ragged(kind: str) -> RaggedFeature:
    return RaggedFeature({"bytes_list": bytes, "float_list": np.float32, "int64_list": np.int64}[kind])


@pytest.mark.parametrize("record", UNUSUAL.values(), ids=UNUSUAL.keys())
def test_records_that_others_would_not_build_so(record: bytes) -> None:
    expected = list(Example.FromString(record).features.feature["x"].int64_list.value)
    assert parse_batch([record] * 6, {"x": RaggedFeature(np.int64)})["x"].to_list() == [expected] * 6


def test_integers_that_share_bytes_otherwise() -> None:
    """All of one length, and of one structure, but for where each number ends."""
    rows = [[300, 1], [1, 300], [200, 2], [5, 129]] * 5
    found = parse_batch([encode_example({"x": row}) for row in rows], {"x": FixedLenFeature((2,), np.int64)})
    assert found["x"].tolist() == rows


@pytest.mark.parametrize("packed", [b"\x01\x80", b"\x80", b"\xff" * 11 + b"\x01"])
def test_integers_that_do_not_end_are_damage(packed: bytes) -> None:
    record = example(entry("x", field(3, field(1, packed))))
    with pytest.raises(CorruptDataError, match="record 0 of the batch is not a tf"):
        parse_batch([record] * 6, {"x": RaggedFeature(np.int64)})


def test_the_same_record_many_times_and_once() -> None:
    spec = {"image": RawFeature((3,)), "label": FixedLenFeature((), np.int64)}
    parse = ExampleParser(spec)
    rng = np.random.default_rng(0)
    for num_records in (1, 3, 4, 50):
        images, labels = rng.integers(0, 256, (num_records, 3), dtype=np.uint8), rng.integers(-3, 300, num_records)
        records = [
            encode_example({"image": image.tobytes(), "label": int(label), "more": [int(label)] * 2})
            for image, label in zip(images, labels, strict=True)
        ]
        found = parse(records)
        np.testing.assert_array_equal(found["image"], images)
        np.testing.assert_array_equal(found["label"], labels)
        assert all(array.flags.writeable for array in found.values())


def test_values_of_several_kinds_side_by_side() -> None:
    records = [encode_example({"x": number, "w": [0.5, number], "n": [b"a" * number, b"b"]}) for number in range(20)]
    spec = {
        "x": VarLenFeature(np.int64),
        "w": VarLenFeature(np.float32),
        "n": FixedLenFeature((2,), bytes),
        "z": VarLenFeature(bytes),
    }
    found = parse_batch(records, spec)
    assert isinstance(found["x"], SparseArray)
    assert found["x"].to_dense().tolist() == [[number] for number in range(20)]
    assert found["w"].indices.tolist()[:3] == [[0, 0], [0, 1], [1, 0]]
    assert found["w"].dense_shape.tolist() == [20, 2]
    assert found["n"].tolist() == [[b"a" * number, b"b"] for number in range(20)]
    assert (found["z"].indices.shape, found["z"].dense_shape.tolist()) == ((0, 2), [20, 0])


def test_defaults_among_records_that_are_alike() -> None:
    with_it, without = encode_example({"x": [1, 2]}), encode_example({"y": [1, 2]})
    spec = {"x": FixedLenFeature((2,), np.int64, [7, 8])}
    assert parse_batch([with_it, without] * 5, spec)["x"].tolist() == [[1, 2], [7, 8]] * 5


@pytest.mark.parametrize("number", [0, 5, 9])
def test_a_record_that_does_not_fit_is_named_among_many(number: int) -> None:
    records = [encode_example({"x": 1})] * 10
    records[number] = encode_example({"x": 1.5})
    for feature in (FixedLenFeature((), np.int64), VarLenFeature(np.int64), RaggedFeature(np.int64)):
        with pytest.raises(InvalidInputError, match=f"feature 'x' of record {number} of the batch does not fit"):
            parse_batch(records, {"x": feature})
    records[number] = b"\x0a\xff"
    with pytest.raises(CorruptDataError, match=f"record {number} of the batch is not a tf"):
        parse_batch(records, {"x": FixedLenFeature((), np.int64)})


def test_a_batch_of_places_is_a_sequence_of_bytes() -> None:
    buffers = [np.frombuffer(b"abcdef", np.uint8), np.frombuffer(b"xyz", np.uint8)]
    batch = RecordBatch(buffers, buffer_of=np.array([0, 1, 0]), starts=np.array([1, 0, 4]), lengths=np.array([2, 3, 2]))
    assert list(batch) == [b"bc", b"xyz", b"ef"]
    assert (len(batch), batch[-1], list(batch[1:])) == (3, b"ef", [b"xyz", b"ef"])
    assert [row.tobytes() for row in batch.rows(np.array([2, 0]))] == [b"ef", b"bc"]
    assert batch.joined(np.array([2, 0])).tobytes() == batch[2] + batch[0]
    assert RecordBatch.of(batch) is batch
    assert list(RecordBatch.of([b"", b"a"])) == [b"", b"a"]
    assert list(RecordBatch.of([])) == []


def test_ragged_rows_are_filled_up() -> None:
    rows = RaggedArray(np.array([1, 2, 3, 4]), np.array([0, 3, 3, 4]))
    assert rows.to_dense().tolist() == [[1, 2, 3], [0, 0, 0], [4, 0, 0]]
    assert rows.to_dense(size=2, default_value=-1).tolist() == [[1, 2], [-1, -1], [4, -1]]
    assert rows.row_lengths.tolist() == [3, 0, 1]
    nested = RaggedArray(rows, np.array([0, 2, 3]))
    assert nested.to_list() == [[[1, 2, 3], []], [[4]]]
    assert (rows.ragged_rank, nested.ragged_rank) == (1, 2)
    assert nested.to_dense(default_value=9).tolist() == [[[1, 2, 3], [9, 9, 9]], [[4, 9, 9], [9, 9, 9]]]
    assert nested.to_dense(size=(1, None)).tolist() == [[[1, 2, 3]], [[4, 0, 0]]]
    pairs = RaggedArray(np.array([[1, 2], [3, 4], [5, 6]]), np.array([0, 1, 3]))
    assert pairs.to_dense().tolist() == [[[1, 2], [0, 0]], [[3, 4], [5, 6]]]
    with pytest.raises(InvalidInputError, match=r"the lengths of ragged dimensions; received 3; allowed: 2"):
        nested.to_dense(size=3)


@pytest.mark.parametrize(
    ("values", "row_splits"),
    [
        (np.arange(3), np.array([1, 3])),
        (np.arange(3), np.array([0, 2, 1, 3])),
        (np.arange(3), np.array([0, 2])),
        (np.arange(3), np.array([0, 4])),
        (np.arange(3), np.array([], np.int64)),
        (np.arange(3), np.array([0.0, 3.0])),
        (np.arange(3), np.array([[0, 3]])),
        (RaggedArray(np.arange(3), np.array([0, 1, 3])), np.array([0, 3])),
        (RaggedArray(np.arange(2), np.array([1, 1, 2])), np.array([0, 2])),
    ],
    ids=["start", "decreasing", "too few", "too many", "empty", "floats", "two dims", "nested", "within"],
)
def test_row_splits_that_do_not_fit_the_values_are_refused(values: Any, row_splits: np.ndarray) -> None:
    rows = RaggedArray(values, row_splits)
    for use in (rows.to_dense, rows.to_list):
        with pytest.raises(InvalidInputError, match=r"row_splits of a ragged array; received .* end at [23], the num"):
            use()


def test_ragged_arrays_of_no_rows_are_empty() -> None:
    for row_splits in (np.array([0]), np.array([], np.int32)):
        rows = RaggedArray(np.empty(0), row_splits)
        assert (rows.to_list(), rows.to_dense().shape) == ([], (0, 0))


def test_one_record_is_parsed_as_a_batch_of_one() -> None:
    record = encode_example({"label": 3, "name": b"x", "pixels": [1.0, 2.0]})
    spec = {
        "label": FixedLenFeature((), np.int64),
        "name": FixedLenFeature((), bytes),
        "pixels": FixedLenFeature((2,), np.float32),
    }
    found = parse_example(record, spec)
    assert (int(found["label"]), found["name"], found["pixels"].tolist()) == (3, b"x", [1.0, 2.0])
    with pytest.raises(InvalidInputError, match="'pixels' has any number of values"):
        parse_example(record, {"pixels": VarLenFeature(np.float32)})
