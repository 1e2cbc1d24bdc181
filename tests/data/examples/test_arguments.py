"""Whatever is wrong with an argument is said in one line, and never by an error of NumPy's or Python's."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lockstep.data import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedArray,
    RaggedFeature,
    RawFeature,
    SparseArray,
    SparseFeature,
    VarLenFeature,
    decode_example,
    decode_sequence_example,
    encode_example,
    encode_sequence_example,
    parse_batch,
)
from lockstep.errors import InvalidInputError

I64 = np.int64
RAGGED_FEATURE: Any = RaggedFeature  # of any arguments
RAGGED = RaggedArray(values=np.arange(3), row_splits=np.array([0, 1, 3]))
SPARSE = SparseArray(indices=np.array([[0, 1]]), values=np.array([5]), dense_shape=np.array([1, 2]))

SHAPES: dict[str, Any] = {
    "a number": 3,
    "None": None,
    "text": "12",
    "bytes": b"12",
    "negative": (-1,),
    "open": (None,),
    "floats": (2.0,),
    "truth": (True,),
    "names": ("a",),
    "nested": ((1, 2),),
    "huge": (2**62, 4),
}
DTYPES: dict[str, Any] = {
    "misspelt": "integer",
    "None": None,
    "a number": 5,
    "a list": [1],
    "an array": np.zeros(2),
    "a dictionary": {"a": 1},
    "an object": Ellipsis,
    "text of NumPy": "U3",
    "dates": "M8[s]",
}
DEFAULTS: dict[str, tuple[Any, Any, Any]] = {
    "text of integers": ((), I64, "a"),
    "digits as bytes": ((), I64, b"1"),
    "a fraction": ((), I64, 1.5),
    "not a number": ((), I64, np.nan),
    "too large": ((), np.int8, 300),
    "far too large": ((), I64, 2**70),
    "negative": ((), np.uint64, -1),
    "a dictionary": ((), I64, {}),
    "rows": ((2,), I64, [[1], [1, 2]]),
    "too few": ((2,), I64, [1]),
    "complex": ((), np.float32, 1j),
    "a number of bytes": ((), bytes, 5),
    "half a pair": ((), bytes, "\ud800"),
}
FILLINGS = {of: given for of, given in DEFAULTS.items() if of != "too few"}
SPARSE_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "no index_key": (None, "v", I64, 3),
    "a number as index_key": (1, "v", I64, 3),
    "no size": ("i", "v", I64, None),
    "a negative size": ("i", "v", I64, -1),
    "a size as text": ("i", "v", I64, "3"),
    "a size as float": ("i", "v", I64, 2.0),
    "an open size": (["i", "j"], "v", I64, [2, None]),
    "no value_key": ("i", None, I64, 3),
    "several value_keys": ("i", ["v"], I64, 3),
}
PARTITIONS: dict[str, Callable[[], Any]] = {
    "None": lambda: RAGGED_FEATURE(I64, "v", None),
    "one": lambda: RAGGED_FEATURE(I64, "v", RAGGED_FEATURE.RowLengths("n")),
    "names": lambda: RAGGED_FEATURE(I64, "v", "abc"),
    "classes": lambda: RAGGED_FEATURE(I64, "v", [RAGGED_FEATURE.RowLengths]),
    "a number as key": lambda: RAGGED_FEATURE.RowSplits(5),
    "no key": lambda: RAGGED_FEATURE.ValueRowIds(""),
    "a length as text": lambda: RAGGED_FEATURE.UniformRowLength("2"),
    "a length as float": lambda: RAGGED_FEATURE.UniformRowLength(1.5),
    "no length": lambda: RAGGED_FEATURE.UniformRowLength(None),
}
RECORDS: dict[str, Any] = {
    "one record": b"",
    "text": "abc",
    "texts": ["a"],
    "None": None,
    "parsed": {"a": 1},
    "numbers": [1, 2],
    "arrays": np.zeros((3, 4)),
    "a gap": [b"", None],
}
RECORDS_DECODED = {of: given for of, given in RECORDS.items() if of != "one record"}
ENCODED: dict[str, Any] = {
    "a list": [1],
    "None": None,
    "a number as name": {1: [2]},
    "half a pair as name": {"\ud800": [1]},
    "half a pair": {"a": ["\ud800"]},
    "nothing": {"a": [None]},
}
VALUES: dict[str, tuple[Any, Any]] = {
    "text": (FixedLenFeature((), I64), "a"),
    "a fraction": (FixedLenFeature((), I64), 1.5),
    "fractions": (VarLenFeature(I64), [1.5]),
    "nothing": (FixedLenFeature((), np.float32), None),
    "rows": (FixedLenFeature((2,), I64), [[1], [2, 3]]),
    "raw rows": (RawFeature((2,)), [[1], [2, 3]]),
    "a number as bytes": (FixedLenFeature((), bytes), 5),
    "texts": (FixedLenSequenceFeature((), I64, True), ["a"]),
    "too large": (FixedLenFeature((), np.int8), 300),
}
ROWS: dict[str, dict[str, Any]] = {
    "negative": {"size": -1},
    "text": {"size": "a"},
    "texts": {"size": ["a"]},
    "float": {"size": 1.5},
    "filled with text": {"default_value": "a"},
    "filled with several": {"default_value": [1, 2]},
}

TABLES: dict[str, tuple[Callable[[Any], Any], dict[str, Any]]] = {
    "shape": (lambda given: FixedLenFeature(given, I64), SHAPES),
    "raw shape": (lambda given: RawFeature(given), SHAPES),
    "step": (lambda given: FixedLenSequenceFeature(given, I64), SHAPES),
    "dtype": (lambda given: FixedLenFeature((), given), DTYPES),
    "raw dtype": (lambda given: RawFeature((), given), DTYPES),
    "row_splits_dtype": (lambda given: RaggedFeature(I64, row_splits_dtype=given), DTYPES),
    "default": (lambda given: FixedLenFeature(*given), DEFAULTS),
    "filling": (lambda given: FixedLenSequenceFeature((), given[1], True, given[2]), FILLINGS),
    "sparse": (lambda given: SparseFeature(*given), SPARSE_ARGUMENTS),
    "partitions": (lambda make: make(), PARTITIONS),
    "records": (lambda given: parse_batch(given, {"a": VarLenFeature(I64)}), RECORDS),
    "decoded": (decode_example, RECORDS_DECODED),
    "decoded sequence": (decode_sequence_example, RECORDS_DECODED),
    "encoded": (encode_example, ENCODED),
    "encoded context": (lambda given: encode_sequence_example(given, {}), ENCODED),
    "encoded list": (lambda given: encode_sequence_example({}, given), ENCODED),
    "value": (lambda given: given[0].encode(given[1]), VALUES),
    "rows": (lambda given: RAGGED.to_dense(**given), ROWS),
    "sparse rows": (SPARSE.to_dense, {"text": "a", "several": [1, 2]}),
}


@pytest.mark.parametrize(
    ("make", "given"),
    [
        pytest.param(make, given, id=f"{table}: {of}")
        for table, (make, mistakes) in TABLES.items()
        for of, given in mistakes.items()
    ],
)
def test_every_mistake_is_said_in_one_line(make: Callable[[Any], Any], given: Any) -> None:
    with pytest.raises(InvalidInputError) as caught:
        make(given)
    message = str(caught.value)
    assert "; allowed: " in message
    assert "; received " in message
    assert "\n" not in message


def message_of(make: Callable[[], Any]) -> str:
    with pytest.raises(InvalidInputError) as caught:
        make()
    return str(caught.value)


def test_the_message_says_what_to_do() -> None:
    sizes: Any = (None, 3)
    assert message_of(lambda: FixedLenFeature(sizes, I64)) == (
        "the shape of a feature; received (None, 3); allowed: whole numbers, 0 or more, as a sequence: (28, 28), or () "
        "for one value; read any number of values by VarLenFeature or RaggedFeature"
    )
    assert message_of(lambda: FixedLenFeature([], "integer")) == (
        "a feature's dtype; received 'integer'; allowed: int64, float32, bytes, or another type of integers, floats or "
        "truth values"
    )
    record: Any = b"12"
    assert message_of(lambda: parse_batch(record, {"a": VarLenFeature(I64)})) == (
        "the records of a batch; received 'one of 2 bytes'; allowed: a sequence of bytes; map batches of records "
        "rather than records, or give [record]"
    )


def test_numbers_of_numpy_and_text_are_taken() -> None:
    shape: Any = np.array([2, 3])
    size: Any = np.int64(2)
    assert FixedLenFeature(shape, I64).shape == (2, 3)
    assert SparseFeature("i", "v", I64, size).size == 2
    assert RAGGED.to_dense(size=size).tolist() == [[0, 0], [1, 2]]
    assert parse_batch([b""], {"x": FixedLenFeature((2,), bytes, "é")})["x"].tolist() == [["é".encode()] * 2]
