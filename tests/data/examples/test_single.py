import numpy as np
import pytest

from lockstep.data import (
    FixedLenFeature,
    RaggedFeature,
    VarLenFeature,
    encode_example,
    parse_batch,
    parse_single_example,
)
from lockstep.errors import InvalidInputError

RECORD = encode_example({"image": b"\x00png\x00", "label": 3, "box": [0.5, 1.5], "words": [b"a", b"b"], "ids": [1, 2]})
FEATURES = {
    "image": FixedLenFeature((), "string"),
    "label": FixedLenFeature((), np.int64),
    "box": FixedLenFeature((2,), np.float32),
    "missing": FixedLenFeature((2,), np.float32, default_value=[7.0, 8.0]),
    "words": VarLenFeature("string"),
    "ids": RaggedFeature(np.int64),
}


def test_one_record_is_a_row_of_a_batch():
    found = parse_single_example(RECORD, FEATURES)
    assert found["image"] == b"\x00png\x00"
    assert (found["label"], found["label"].dtype) == (3, np.int64)
    np.testing.assert_array_equal(found["box"], np.array([0.5, 1.5], np.float32))
    np.testing.assert_array_equal(found["missing"], [7, 8])
    assert found["words"].indices.tolist() == [[0], [1]]
    assert found["words"].dense_shape.tolist() == [2]
    assert found["words"].to_dense().tolist() == [b"a", b"b"]
    assert found["ids"].tolist() == [1, 2]
    batch = parse_batch([RECORD], FEATURES)
    np.testing.assert_array_equal(found["box"], batch["box"][0])


def test_several_records_are_refused():
    with pytest.raises(InvalidInputError, match="parse_batch"):
        parse_single_example(np.array([RECORD, RECORD], object), FEATURES)
