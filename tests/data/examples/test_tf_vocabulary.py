"""Features as ``tf.io`` has them: what is expected here is what TensorFlow 2.21 gave for the same records."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.data import (
    AbstractFeature,
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedArray,
    RaggedFeature,
    RecordSource,
    SparseArray,
    SparseFeature,
    VarLenFeature,
    encode_example,
    pack,
    parse_batch,
    read_manifest,
)
from lockstep.data.examples.example import Example
from lockstep.data.examples.features import feature_from_json
from lockstep.errors import CorruptDataError, InvalidInputError

I64 = np.int64
FILLERS = 8
"""Records that are alike, so that the others are not parsed one by one."""


def parse(records: list[dict[str, Any]], feature: AbstractFeature, *, name: str = "x") -> Any:
    """Parses in every way there is: one by one, and side by side, which has to give the same."""
    encoded = [encode_example(record) for record in records]
    found = parse_batch(encoded, {name: feature})[name]
    together = parse_batch(encoded * FILLERS, {name: feature})[name]
    if isinstance(found, RaggedArray):
        assert together.to_list() == found.to_list() * FILLERS
    elif isinstance(found, SparseArray):
        assert together.values.tolist() == found.values.tolist() * FILLERS
    else:
        assert together.tolist() == found.tolist() * FILLERS
    return found


def nothing() -> Any:
    return np.empty(0, I64)


@pytest.mark.parametrize(
    ("shape", "dtype", "default", "records", "expected"),
    [
        ((), I64, None, [{"x": [1, 2]}, {"y": 1}, {"x": 5}], [[1, 2], [0, 0], [5, 0]]),
        ((), I64, -1, [{"x": [1, 2]}, {"y": 1}, {"x": 5}], [[1, 2], [-1, -1], [5, -1]]),
        ((), I64, [-1], [{"x": [1, 2]}, {"x": 5}], [[1, 2], [5, -1]]),
        ((2,), I64, None, [{"x": [1, 2, 3, 4]}, {"x": [5, 6]}], [[[1, 2], [3, 4]], [[5, 6], [0, 0]]]),
        ((1,), bytes, None, [{"x": b"a"}, {}], [[[b"a"]], [[b""]]]),
        ((), np.float32, 0.5, [{"x": [1.0]}, {"x": [2.0, 3.0]}], [[1.0, 0.5], [2.0, 3.0]]),
        ((2,), I64, None, [{"x": [1, 2]}, {"x": [3, 4]}], [[[1, 2]], [[3, 4]]]),
    ],
)
def test_steps_are_filled_up_to_the_longest_of_the_batch(
    shape: Any, dtype: Any, default: Any, records: Any, expected: Any
) -> None:
    feature = FixedLenSequenceFeature(shape, dtype, allow_missing=True, default_value=default)
    found = parse(records, feature)
    assert found.tolist() == expected
    assert found.dtype == (object if dtype is bytes else dtype)


def test_no_steps_at_all_have_a_shape() -> None:
    feature = FixedLenSequenceFeature([2], I64, allow_missing=True)
    assert parse_batch([], {"x": feature})["x"].shape == (0, 0, 2)
    assert parse([{"y": 1}], feature).shape == (1, 0, 2)


def test_a_feature_without_a_kind_has_no_step_and_its_default() -> None:
    example = Example()
    example.features.feature["x"].SetInParent()
    records = [example.SerializeToString(), encode_example({"x": 1})]
    spec = {"x": FixedLenSequenceFeature((), I64, allow_missing=True)}
    assert parse_batch(records, spec)["x"].tolist() == [[0], [1]]
    assert parse_batch(records, {"x": FixedLenFeature((), I64, 5)})["x"].tolist() == [5, 1]


@pytest.mark.parametrize(
    ("given", "expected"), [([1, 2, 3, 4], [[1, 2], [3, 4]]), ([[1, 2], [3, 4]], [[1, 2], [3, 4]])]
)
def test_a_default_is_taken_by_its_number_of_values(given: Any, expected: Any) -> None:
    assert parse([{"y": 1}], FixedLenFeature((2, 2), I64, given)).tolist() == [expected]


@pytest.mark.parametrize(
    ("feature", "records", "received"),
    [
        (FixedLenSequenceFeature((2,), I64, True), [{"x": [1, 2]}, {"x": 5}], "1 values do not divide into steps of 2"),
        (FixedLenSequenceFeature((), I64, True), [{}, {"x": 1.5}], "received '1 values of float32'; allowed: values"),
        (SparseFeature("i", "v", I64, 4), [{}, {"i": [1, 2], "v": 5}], "2 indices for 1 values, by the feature 'i'"),
        (SparseFeature("i", "v", I64, 4), [{}, {"i": 4, "v": 5}], "index 4 in a dimension of size 4, by the feature"),
        (SparseFeature("i", "v", I64, 4), [{}, {"i": -1, "v": 5}], "index -1 in a dimension of size 4"),
        (SparseFeature("i", "v", I64, 4), [{}, {"i": 0.5, "v": 5}], "1 values of float32 of the feature 'i'"),
        (SparseFeature("i", "v", I64, 4), [{}, {"i": 1, "v": 0.5}], "received '1 values of float32'; allowed: values"),
    ],
)
def test_what_does_not_fit_is_named(feature: Any, records: Any, received: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse(records, feature)
    message = str(caught.value)
    assert message.startswith("feature 'x' of record 1 of the batch does not fit the specification; received ")
    assert received in message


SPARSE = [{"i": [3, 1], "v": [0.5, 1.5]}, {}, {"i": 9, "v": 2.5}]


def test_sparse_features_are_sorted_by_their_places() -> None:
    found = parse(SPARSE, SparseFeature("i", "v", np.float32, 10))
    assert found.indices.tolist() == [[0, 1], [0, 3], [2, 9]]
    assert found.values.tolist() == [1.5, 0.5, 2.5]
    assert found.dense_shape.tolist() == [3, 10]
    assert found.to_dense()[0].tolist() == [0, 1.5, 0, 0.5, *[0] * 6]


def test_sparse_features_that_are_sorted_are_left_as_they_are() -> None:
    found = parse(SPARSE, SparseFeature("i", "v", np.float32, 10, already_sorted=True))
    assert found.indices.tolist() == [[0, 3], [0, 1], [2, 9]]
    assert found.values.tolist() == [0.5, 1.5, 2.5]


def test_sparse_features_of_several_dimensions() -> None:
    record = {"i": [3, 1, 1], "j": [0, 1, 0], "v": [b"a", b"b", b"c"]}
    found = parse([record], SparseFeature(["i", "j"], "v", bytes, [10, 4]))
    assert found.indices.tolist() == [[0, 1, 0], [0, 1, 1], [0, 3, 0]]
    assert found.values.tolist() == [b"c", b"b", b"a"]
    assert found.dense_shape.tolist() == [1, 10, 4]
    one = parse([record], SparseFeature(["i"], "v", bytes, [10]))
    assert (one.indices.tolist(), one.dense_shape.tolist()) == ([[0, 1], [0, 1], [0, 3]], [1, 10])


def test_sparse_features_of_records_without_it() -> None:
    found = parse([{}], SparseFeature("i", "v", np.float32, 10))
    assert (found.indices.shape, found.values.dtype, found.dense_shape.tolist()) == ((0, 2), np.float32, [1, 10])


R = RaggedFeature
PARTITIONED = [
    ([R.RowSplits("s")], [{"v": [1, 2], "s": [0, 1, 2]}, {}, {"v": 3, "s": [0, 1]}], [[[1], [2]], [], [[3]]]),
    ([R.RowSplits("s")], [{"s": 0}, {"s": [0, 0]}], [[], [[]]]),
    ([R.ValueRowIds("s")], [{"v": [1, 2, 3], "s": [0, 2, 2]}, {"v": 3, "s": 1}], [[[1], [], [2, 3]], [[], [3]]]),
    ([R.RowStarts("s")], [{"v": [1, 2, 3], "s": [0, 2]}, {"v": 3, "s": [0, 1]}], [[[1, 2], [3]], [[3], []]]),
    ([R.RowLimits("s")], [{"v": [1, 2, 3], "s": [0, 3]}, {"v": 3, "s": 1}], [[[], [1, 2, 3]], [[3]]]),
    (
        [R.RowLengths("s"), R.UniformRowLength(2)],
        [{"v": [1, 2, 3, 4], "s": [0, 2]}, {"v": [3, 4], "s": 1}],
        [[[], [[1, 2], [3, 4]]], [[[3, 4]]]],
    ),
    (
        [R.UniformRowLength(2), R.RowLengths("s")],
        [{"v": [1, 2, 3, 4], "s": [1, 3]}, {"v": [3, 4], "s": [1, 1]}],
        [[[[1], [2, 3, 4]]], [[[3], [4]]]],
    ),
    (
        [R.RowSplits("t"), R.RowSplits("s")],  # the example of TensorFlow's documentation
        [
            {"v": [3, 1, 4, 1, 5, 9], "s": [0, 2, 3, 3, 6], "t": [0, 2, 3, 4]},
            {"v": [2, 7, 1, 8, 2, 8, 1], "s": [0, 3, 4, 5, 7], "t": [0, 1, 1, 4]},
        ],
        [[[[3, 1], [4]], [[]], [[1, 5, 9]]], [[[2, 7, 1]], [], [[8], [2], [8, 1]]]],
    ),
    ([R.UniformRowLength(1), R.UniformRowLength(2)], [{"v": [1, 2, 3, 4]}, {}], [[[[1, 2]], [[3, 4]]], []]),
]


@pytest.mark.parametrize(("partitions", "records", "expected"), PARTITIONED)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_partitions_cut_values_into_rows(partitions: Any, records: Any, expected: Any, dtype: Any) -> None:
    feature = RaggedFeature(I64, value_key="v", partitions=partitions, row_splits_dtype=dtype, validate=True)
    found = parse(records, feature)
    assert found.to_list() == expected
    while isinstance(found, RaggedArray):
        assert found.row_splits.dtype == dtype
        found = found.values
    assert found.dtype == I64


def test_the_last_uniform_rows_are_dimensions_of_the_array() -> None:
    feature = RaggedFeature(I64, "v", [R.RowLengths("s"), R.UniformRowLength(2)])
    found = parse([{"v": [1, 2, 3, 4], "s": 2}], feature)
    assert found.ragged_rank == 2
    assert found.values.values.shape == (2, 2)


def test_several_features_read_one_and_the_same() -> None:
    record = encode_example({"v": [3, 1, 4], "s": [0, 2, 3]})
    spec = {
        "flat": RaggedFeature(I64, value_key="v"),
        "rows": RaggedFeature(I64, "v", [R.RowSplits("s")]),
        "v": VarLenFeature(I64),
        "s": FixedLenFeature((3,), I64),
    }
    found = parse_batch([record], spec)
    assert (found["flat"].to_list(), found["rows"].to_list()) == ([[3, 1, 4]], [[[3, 1], [4]]])
    assert (found["v"].values.tolist(), found["s"].tolist()) == ([3, 1, 4], [[0, 2, 3]])


@pytest.mark.parametrize(
    ("partition", "numbers", "reason"),
    [
        (R.RowSplits("s"), [0, 1], "rows of 1 values in all, where there are 3"),
        (R.RowSplits("s"), [1, 3], "row splits that do not begin with 0"),
        (R.RowSplits("s"), [0, 4, 3], "rows of a negative length"),
        (R.RowSplits("s"), [0, 4, 5], "a row longer than all values"),
        (R.RowSplits("s"), [0, 2, 1, 3], "rows of a negative length"),
        (R.RowSplits("s"), [0, 2**63 - 1, -(2**63)], "a row longer than all values"),
        (R.RowSplits("s"), [], "rows of 0 values in all, where there are 3"),
        (R.RowLimits("s"), [2], "rows of 2 values in all"),
        (R.RowLimits("s"), [4], "a row longer than all values"),
        (R.RowStarts("s"), [1, 2], "rows of 2 values in all"),
        (R.RowStarts("s"), [0, 4], "rows of a negative length"),
        (R.RowLengths("s"), [1, 1], "rows of 2 values in all"),
        (R.RowLengths("s"), [4, -1], "rows of a negative length"),
        (R.ValueRowIds("s"), [0, 1], "2 row numbers for 3 values"),
        (R.ValueRowIds("s"), [0, 2, 1], "row numbers that are negative or fall"),
        (R.ValueRowIds("s"), [-1, 0, 0], "row numbers that are negative or fall"),
        (R.ValueRowIds("s"), [0, 0, 2**63 - 1], "row number 9223372036854775807 for 3 values"),
    ],
)
@pytest.mark.parametrize("validate", [False, True])
def test_partitions_that_do_not_fit_are_named(partition: Any, numbers: Any, reason: str, validate: bool) -> None:
    """TensorFlow took values of the next record here, where it noticed nothing."""
    bad = {"v": [1, 2, 3], "s": np.array(numbers, I64)}
    with pytest.raises(InvalidInputError) as caught:
        parse([{}, bad, {}], RaggedFeature(I64, "v", [partition], validate=validate))
    message = str(caught.value)
    assert message.startswith("feature 'x' of record 1 of the batch does not fit the specification; received ")
    assert reason in message
    assert "by the feature 's'" in message


def test_values_that_do_not_divide_into_rows_are_named() -> None:
    with pytest.raises(InvalidInputError, match=r"record 0 of the batch .*'3 values do not divide into rows of 2'"):
        parse([{"v": [1, 2, 3]}, {"v": [3]}], RaggedFeature(I64, "v", [R.UniformRowLength(2)]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RaggedFeature(I64, ""), "a ragged feature's values, value_key; received ''"),
        (lambda: RaggedFeature(I64, partitions=["s"]), "a ragged feature's partitions; received ['s']; allowed: a seq"),
        (lambda: RaggedFeature(I64, row_splits_dtype=np.int8), "row_splits_dtype; received 'int8'"),
        (lambda: R.UniformRowLength(0), "a uniform row length; received 0; allowed: a whole number, 1 or more"),
        (lambda: SparseFeature("i", "v", I64, [3]), "a sparse feature's index_key and size"),
        (lambda: SparseFeature(["i", "j"], "v", I64, [3]), "a sparse feature's index_key and size"),
        (lambda: SparseFeature([], "v", I64, []), "a sparse feature's index_key and size"),
        (lambda: SparseFeature("i", "", I64, 3), "a sparse feature's values, value_key; received ''"),
        (lambda: FixedLenSequenceFeature((0,), I64), "the shape of a step"),
        (lambda: FixedLenSequenceFeature((2,), I64, True, [1, 2]), "the padding value of a sequence"),
        (
            lambda: parse_batch([], {"x": FixedLenSequenceFeature((), I64)}),
            "FixedLenSequenceFeature in a tf.train.Example; received 'allow_missing=False'",
        ),
        (
            lambda: parse_batch([], {"x": RaggedFeature(I64, "v"), "v": RaggedFeature(np.float32)}),
            "the feature 'v' of the records is requested with two kinds of values; received 'int64 and float32'",
        ),
    ],
)
def test_features_that_cannot_be_are_refused(make: Any, message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        make()
    assert message in str(caught.value)


DESCRIBED = [
    FixedLenSequenceFeature((2, 3), np.float32, True, -1.5),
    FixedLenSequenceFeature((), bytes, False, b"\xff"),
    FixedLenSequenceFeature((), I64, True),
    SparseFeature("i", "v", bytes, 7, True),
    SparseFeature(["i", "j"], "v", I64, [7, 8]),
    RaggedFeature(I64),
    RaggedFeature(I64, "v", [partition for one in PARTITIONED for partition in one[0]], I64),
]


@pytest.mark.parametrize("feature", DESCRIBED)
def test_a_description_comes_back_from_json(feature: Any) -> None:
    assert feature_from_json(feature.to_json()) == feature


@pytest.mark.parametrize(
    "document",
    [
        {"type": "ragged", "dtype": "int64", "row_splits_dtype": "int32", "partitions": [["no such", "s"]]},
        {"type": "ragged", "dtype": "int64", "row_splits_dtype": "int32", "partitions": [["uniform_row_length", 0]]},
        {"type": "ragged", "dtype": "int64", "row_splits_dtype": "int32", "partitions": 3},
        {"type": "sparse", "dtype": "int64", "index_key": 3, "value_key": "v", "size": 3, "already_sorted": False},
        {"type": "fixed_sequence", "dtype": "bytes", "step_shape": [], "allow_missing": True, "default_value": "zz"},
        {"type": "fixed_sequence", "dtype": "int64", "step_shape": "a", "allow_missing": True, "default_value": None},
    ],
)
def test_a_description_that_is_not_usable_is_reported(document: Any) -> None:
    with pytest.raises(CorruptDataError, match="a feature's description is not usable"):
        feature_from_json(document)


@pytest.mark.parametrize(
    ("feature", "value", "expected"),
    [
        (FixedLenSequenceFeature((2,), I64, True), [[1, 2], [3, 4]], [[[1, 2], [3, 4]]]),
        (FixedLenSequenceFeature((), bytes, True), [b"a", b"bc"], [[b"a", b"bc"]]),
        (FixedLenSequenceFeature((), bytes, True), [], [[]]),
        (FixedLenSequenceFeature((3,), np.float32, True), np.zeros((0, 3)), [[]]),
        (RaggedFeature(I64), [1, 2], [[1, 2]]),
        (RaggedFeature(I64, partitions=[R.UniformRowLength(2)]), [1, 2], [[[1, 2]]]),
    ],
)
def test_what_can_be_packed_is_read_as_it_was(feature: Any, value: Any, expected: Any) -> None:
    found = parse_batch([encode_example({"x": feature.encode(value)})], {"x": feature})["x"]
    assert (found.to_list() if isinstance(found, RaggedArray) else found.tolist()) == expected


@pytest.mark.parametrize(
    ("feature", "value", "message"),
    [
        (SparseFeature("i", "v", I64, 4), [1], "reads others of the record cannot be packed as one; received 'v, i'"),
        (RaggedFeature(I64, "v"), [1], "reads others of the record cannot be packed as one; received 'v'"),
        (RaggedFeature(I64, None, [R.RowSplits("s")]), [1], "cannot be packed as one; received 's'; pack each of"),
        (FixedLenSequenceFeature((), I64), [1], "received 'allow_missing=False'"),
        (FixedLenSequenceFeature((2,), I64, True), [1, 2], "a value does not fit its feature"),
    ],
)
def test_what_cannot_be_packed_says_so(feature: Any, value: Any, message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        feature.encode(value)
    assert message in str(caught.value)


def test_packed_sets_have_sequences_and_uniform_rows_in_their_manifest(tmp_path: Path) -> None:
    features = {
        "track": FixedLenSequenceFeature((2,), np.float32, allow_missing=True, default_value=-1.0),
        "words": FixedLenSequenceFeature((), bytes, allow_missing=True),
        "pairs": RaggedFeature(I64, partitions=[R.UniformRowLength(2)]),
    }
    examples = [
        {"track": [[number, 0.5]] * number, "words": ["w"] * number, "pairs": [number, 7] * number}
        for number in range(4)
    ]
    pack(examples, str(tmp_path), name="a", split="b", num_shards=1, features=features)
    manifest = read_manifest(str(tmp_path), name="a", split="b")
    assert manifest.features == features
    source = RecordSource(str(tmp_path / "a-b-*.tfrec"))
    found = parse_batch(source.__getitems__(range(4)), manifest.features)
    assert found["track"][1].tolist() == [[1, 0.5], [-1, -1], [-1, -1]]
    assert found["words"][2].tolist() == [b"w", b"w", b""]
    assert found["pairs"].to_list() == [[[number, 7]] * number for number in range(4)]


def test_sets_are_not_packed_with_features_that_read_others(tmp_path: Path) -> None:
    features = {"x": SparseFeature("i", "v", I64, 4)}
    with pytest.raises(InvalidInputError, match="reads others of the record cannot be packed as one; received 'v, i'"):
        pack([{"x": [1]}], str(tmp_path), name="a", split="b", num_shards=1, features=features)
