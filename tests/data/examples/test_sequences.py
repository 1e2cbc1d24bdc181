"""Sequence examples: what is expected of features is what TensorFlow 2.21 gave for the same records."""

import contextlib
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.data import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    RawFeature,
    SequenceExampleParser,
    SparseFeature,
    VarLenFeature,
    decode_sequence_example,
    encode_example,
    encode_sequence_example,
    parse_sequence_batch,
)
from lockstep.data.examples.example import SequenceExample
from lockstep.errors import CorruptDataError, InvalidInputError

I64 = np.int64
NOTHING = np.empty(0, I64)
FIRST = encode_sequence_example({"c": 7, "w": [1, 2]}, {"a": [1, 2], "b": [[1, 2], NOTHING, [3]]})
SECOND = encode_sequence_example({"c": 8}, {"a": [5]})
FILLERS = 8
"""Records that are alike, so that the others are not parsed one by one."""


def test_it_is_tensorflows_message_to_the_byte() -> None:
    # tf.train.SequenceExample(...).SerializeToString() of the same values
    assert FIRST.hex() == (
        "0a190a0a0a016312051a030a01070a0b0a017712061a040a020102122f0a130a0161120e0a051a030a01010a051a030a01020a180a0162"
        "12130a061a040a0201020a021a000a051a030a0103"
    )


def test_a_message_comes_back() -> None:
    context, lists = decode_sequence_example(FIRST)
    assert {name: list(values) for name, values in context.items()} == {"c": [7], "w": [1, 2]}
    assert {name: [list(values) for values in entries] for name, entries in lists.items()} == {
        "a": [[1], [2]],
        "b": [[1, 2], [], [3]],
    }
    text = encode_sequence_example(
        {"name": "x"}, {"words": [["a", "b"], b"c"], "weights": np.array([[0.5, 1], [2, 3]])}
    )
    context, lists = decode_sequence_example(text)
    assert context == {"name": [b"x"]}
    assert lists["words"] == [[b"a", b"b"], [b"c"]]
    assert [step.tolist() for step in lists["weights"] if isinstance(step, np.ndarray)] == [[0.5, 1], [2, 3]]


def test_what_is_no_message_or_no_value_is_named() -> None:
    with pytest.raises(CorruptDataError, match=r"the record is not a tf\.train\.SequenceExample"):
        decode_sequence_example(b"\xff\xff")
    with pytest.raises(InvalidInputError, match="feature list 'x' cannot be encoded; received b'abc'"):
        encode_sequence_example({}, {"x": b"abc"})
    with pytest.raises(InvalidInputError, match="feature list 'x' cannot be encoded; received 3"):
        encode_sequence_example({}, {"x": 3})  # type: ignore[dict-item]
    with pytest.raises(InvalidInputError, match="feature 'x' cannot be encoded"):
        encode_sequence_example({"x": None}, {})


def parse(records: list[bytes], context: Any, sequences: Any) -> Any:
    """Parses one by one; side by side it has to give as many times the same."""
    found = parse_sequence_batch(records, context, sequences)
    together = parse_sequence_batch(records * FILLERS, context, sequences)
    for one, many in zip(found, together, strict=True):
        assert one.keys() == many.keys()
        for name, value in one.items():
            if hasattr(value, "to_list"):
                assert many[name].to_list() == value.to_list() * FILLERS
            elif hasattr(value, "to_dense"):
                assert many[name].to_dense(-9).tolist() == value.to_dense(-9).tolist() * FILLERS
            else:
                assert many[name].tolist() == value.tolist() * FILLERS
    return found


def test_context_and_lists_of_every_class() -> None:
    context, sequences, lengths = parse(
        [FIRST, SECOND],
        {"c": FixedLenFeature([], I64), "w": VarLenFeature(I64), "q": FixedLenFeature([2], I64, [1, 2])},
        {"a": FixedLenSequenceFeature([], I64), "b": VarLenFeature(I64)},
    )
    assert context["c"].tolist() == [7, 8]
    assert context["q"].tolist() == [[1, 2], [1, 2]]
    assert (context["w"].indices.tolist(), context["w"].dense_shape.tolist()) == ([[0, 0], [0, 1]], [2, 2])
    assert sequences["a"].tolist() == [[1, 2], [5, 0]]
    assert sequences["b"].indices.tolist() == [[0, 0, 0], [0, 0, 1], [0, 2, 0]]
    assert (sequences["b"].values.tolist(), sequences["b"].dense_shape.tolist()) == ([1, 2, 3], [2, 3, 2])
    assert {name: length.tolist() for name, length in lengths.items()} == {"a": [2, 1]}


def test_ragged_features_have_a_dimension_of_steps() -> None:
    context, sequences, lengths = parse([FIRST, SECOND], {"w": RaggedFeature(I64)}, {"b": RaggedFeature(I64)})
    assert context["w"].to_list() == [[1, 2], []]
    assert sequences["b"].to_list() == [[[1, 2], [], [3]], []]
    assert (sequences["b"].ragged_rank, sequences["b"].row_splits.dtype, lengths) == (2, np.int32, {})


def test_a_list_that_may_be_missing_has_no_step() -> None:
    empty = encode_sequence_example({}, {})
    found = parse([FIRST, empty], None, {"a": FixedLenSequenceFeature([], I64, allow_missing=True)})
    assert (found.sequences["a"].tolist(), found.lengths["a"].tolist()) == ([[1, 2], [0, 0]], [2, 0])
    there = encode_sequence_example({}, {"a": []})  # which is not missing
    found = parse([FIRST, there], None, {"a": FixedLenSequenceFeature([], I64)})
    assert found.lengths["a"].tolist() == [2, 0]


def test_steps_of_several_values_and_of_text() -> None:
    records = [
        encode_sequence_example({}, {"a": [[1, 2], [3, 4]], "s": [b"x", b"yz"]}),
        encode_sequence_example({}, {"a": [[5, 6]], "s": []}),
    ]
    spec = {"a": FixedLenSequenceFeature([2], I64), "s": FixedLenSequenceFeature([], bytes)}
    found = parse(records, {}, spec)
    assert found.sequences["a"].tolist() == [[[1, 2], [3, 4]], [[5, 6], [0, 0]]]
    assert found.sequences["s"].tolist() == [[b"x", b"yz"], [b"", b""]]
    assert found.lengths["s"].tolist() == [2, 0]


def test_partitions_of_each_step() -> None:
    records = [
        encode_sequence_example({}, {"v": [[1, 2, 3], [4]], "s": [[1, 2], [1]]}),
        encode_sequence_example({}, {"v": [[9]], "s": [[1]]}),
    ]
    feature = RaggedFeature(I64, "v", [RaggedFeature.RowLengths("s")])
    assert parse(records, None, {"r": feature}).sequences["r"].to_list() == [[[[1], [2, 3]], [[4]]], [[[9]]]]
    apart = encode_sequence_example({}, {"v": [[1], [2]], "s": [[1]]})
    with pytest.raises(
        InvalidInputError, match=r"list 'r' of record 2 .*; received \"1 steps of 's' for 2 steps of val"
    ):
        parse([*records, apart], None, {"r": feature})


def test_examples_and_raw_arrays_are_contexts_too() -> None:
    # An Example is a SequenceExample without feature lists, on the wire.
    found = parse([encode_example({"image": bytes([1, 2])})], {"image": RawFeature((2,))}, None)
    assert found.context["image"].tolist() == [[1, 2]]


def test_an_empty_batch_has_shapes() -> None:
    found = parse_sequence_batch(
        [],
        {"c": FixedLenFeature([2], I64)},
        {"a": FixedLenSequenceFeature([2], I64), "b": VarLenFeature(I64), "r": RaggedFeature(I64)},
    )
    assert (found.context["c"].shape, found.sequences["a"].shape) == ((0, 2), (0, 0, 2))
    assert (found.sequences["b"].indices.shape, found.sequences["r"].to_list()) == ((0, 3), [])


@pytest.mark.parametrize(
    ("lists", "feature", "message"),
    [
        (
            {"b": [[1]]},
            FixedLenSequenceFeature([], I64),
            "record 1 of the batch lacks the feature list 'a'; allowed: b; ",
        ),
        (
            {"a": [1, [2, 3]]},
            FixedLenSequenceFeature([], I64),
            "of step 1 of record 1 of the batch does not fit the specification; received '2 values of int64, where",
        ),
        ({"a": [1.5]}, FixedLenSequenceFeature([], I64), "received '1 values of float32, where a step has 1 of int64'"),
        (
            {"a": [NOTHING]},
            FixedLenSequenceFeature([], I64),
            "received '0 values of int64, where a step has 1 of int64'",
        ),
        ({"a": [b"x"]}, RaggedFeature(I64), "received '1 values of bytes'; allowed: values of int64"),
        (
            {"a": [[1, 2], [3, 4]], "s": [2, 3]},
            RaggedFeature(I64, None, [RaggedFeature.RowLengths("s")]),
            "feature 'a' of step 1 of record 1 of the batch does not fit the specification; received \"",
        ),
    ],
)
def test_what_does_not_fit_is_named(lists: Any, feature: Any, message: str) -> None:
    good = encode_sequence_example({}, {"a": [1], "s": [1]})
    with pytest.raises(InvalidInputError) as caught:
        parse([good, encode_sequence_example({}, lists), good], None, {"a": feature})
    assert message in str(caught.value)


def test_a_step_of_another_type_is_named() -> None:
    sequence = SequenceExample()
    steps = sequence.feature_lists.feature_list["a"].feature
    for _ in range(2):
        steps.add().int64_list.value.append(1)
    steps.add().float_list.value.append(1.5)  # another program's: Lockstep gives all steps one type
    good = encode_sequence_example({}, {"a": [1]})
    message = "of step 2 of record 1 of the batch does not fit the specification; received '1 values of float32'"
    with pytest.raises(InvalidInputError, match=message):
        parse([good, sequence.SerializeToString(), good], None, {"a": VarLenFeature(I64)})


def test_a_step_without_values_is_of_the_type_that_is_asked_for() -> None:
    lists = {"floats": [[1.5], [], [2]], "words": [[], ["a"]], "whole": [np.array([]), [1]]}
    spec = {"floats": VarLenFeature(np.float32), "words": RaggedFeature(bytes), "whole": VarLenFeature(I64)}
    found = parse([encode_sequence_example({}, lists)], None, spec).sequences
    assert (found["floats"].values.dtype, found["floats"].values.tolist()) == (np.float32, [1.5, 2])
    assert found["words"].to_list() == [[[], [b"a"]]]
    assert found["whole"].values.tolist() == [1]


def test_steps_of_several_types_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="feature list 'a' cannot be encoded; received 'bytes and int64'"):
        encode_sequence_example({}, {"a": [[1], ["x"]]})


def test_what_a_context_lacks_is_named() -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse([FIRST, SECOND], {"w": FixedLenFeature([2], I64)}, None)
    assert str(caught.value) == "the context of record 1 of the batch lacks the feature 'w'; allowed: c"
    with pytest.raises(CorruptDataError, match=r"record 1 of the batch is not a tf\.train\.SequenceExample"):
        parse([FIRST, b"\xff\xff"], {"c": FixedLenFeature([], I64)}, None)


@pytest.mark.parametrize(
    ("context", "sequences", "message"),
    [
        (None, {}, "the specification is empty; allowed: context_features"),
        ({"x": SparseFeature("i", "v", I64, 4)}, None, "feature 'x' is of a class that a context cannot have"),
        ({"x": FixedLenSequenceFeature([], I64, True)}, None, "received 'FixedLenSequenceFeature'; allowed: FixedLenF"),
        (None, {"x": FixedLenFeature([], I64)}, "feature 'x' is of a class that feature lists cannot have"),
        (None, {"x": RawFeature(())}, "allowed: FixedLenSequenceFeature, VarLenFeature, RaggedFeature"),
    ],
)
def test_specifications_that_cannot_be_are_refused(context: Any, sequences: Any, message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        SequenceExampleParser(context, sequences)
    assert message in str(caught.value)


def test_a_record_that_is_damaged_where_nobody_looks_is_named_when_it_does_not_fit() -> None:
    damaged = bytearray(encode_sequence_example({"c": [1, 2], "z": 1}, {"a": [1.5], "z": [1]}))
    damaged[damaged.index(b"z") - 1] = 9  # the length of a name that is not asked for
    good = [FIRST] * FILLERS
    for context, sequences in (({"c": FixedLenFeature([], I64)}, None), (None, {"a": VarLenFeature(I64)})):
        with pytest.raises(CorruptDataError, match=r"record 8 of the batch is not a tf\.train\.SequenceExample"):
            parse_sequence_batch([*good, bytes(damaged)], context, sequences)


INTEGERS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(0, 200))
KINDS = {
    "numbers": (st.lists(INTEGERS, max_size=4), I64),
    "weights": (st.lists(st.floats(width=32, allow_nan=False), max_size=3), np.float32),
    "names": (st.lists(st.binary(max_size=70), max_size=3), bytes),
    "other": (st.lists(INTEGERS, max_size=2), I64),
}
RAGGED = {name: RaggedFeature(dtype) for name, (_, dtype) in KINDS.items() if name != "other"}
CONTEXTS = st.fixed_dictionaries({}, optional={name: values for name, (values, _) in KINDS.items()})
LISTS = st.fixed_dictionaries({}, optional={name: st.lists(values, max_size=4) for name, (values, _) in KINDS.items()})
SEQUENCES = st.tuples(CONTEXTS, LISTS)


def encode(context: dict[str, Any], lists: dict[str, Any]) -> bytes:
    def typed(name: str, values: list[Any]) -> Any:
        return values or np.empty(0, "S1" if KINDS[name][1] is bytes else KINDS[name][1])

    return encode_sequence_example(
        {name: typed(name, values) for name, values in context.items()},
        {name: [typed(name, values) for values in entries] for name, entries in lists.items()},
    )


def check(records: list[bytes]) -> None:
    """Compares a batch with what the protocol buffers' own parser gives."""
    found = parse_sequence_batch(records, RAGGED, RAGGED)
    messages = [SequenceExample.FromString(record) for record in records]
    for name, (_, dtype) in KINDS.items():
        if name == "other":
            continue
        kind = "bytes_list" if dtype is bytes else "int64_list" if dtype is I64 else "float_list"

        def values(feature: Any) -> list[Any]:
            return list(getattr(feature, kind).value)  # noqa: B023 - called at once

        of_context = [
            values(message.context.feature.get(name)) if name in message.context.feature else [] for message in messages
        ]
        of_lists = [
            [values(entry) for entry in message.feature_lists.feature_list[name].feature]
            if name in message.feature_lists.feature_list
            else []
            for message in messages
        ]
        np.testing.assert_equal(found.context[name].to_list(), of_context)
        np.testing.assert_equal(found.sequences[name].to_list(), of_lists)


@settings(max_examples=150, deadline=None)
@given(st.lists(SEQUENCES, max_size=25))
@pytest.mark.heavy
def test_any_batch_gives_what_its_records_have(batch: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    check([encode(*record) for record in batch])


@settings(max_examples=100, deadline=None)
@given(
    st.lists(SEQUENCES, min_size=8, max_size=12),
    st.lists(st.tuples(st.integers(0, 11), st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=3),
)
@pytest.mark.heavy
def test_damaged_records_are_read_as_protocol_buffers_read_them_or_refused(batch: Any, flips: Any) -> None:
    records = [bytearray(encode(*record)) for record in batch]
    for number, place, value in flips:
        record = records[number % len(records)]
        if record:
            record[place % len(record)] = value
    damaged = [bytes(record) for record in records]
    try:
        messages = [SequenceExample.FromString(record) for record in damaged]
    except DecodeError:
        # Where what nobody asked for is damaged, it need not be noticed; nothing else comes out of it than this.
        with contextlib.suppress(CorruptDataError, InvalidInputError):
            parse_sequence_batch(damaged, RAGGED, RAGGED)
        return
    if any(has_other_kinds(message) for message in messages):
        with pytest.raises(InvalidInputError, match="values of"):
            check(damaged)
    else:
        check(damaged)


def has_other_kinds(message: Any) -> bool:
    """Whether a flip made another kind of a feature that is asked for."""
    found = list(message.context.feature.items())
    found += [
        (name, entry) for name, entries in message.feature_lists.feature_list.items() for entry in entries.feature
    ]
    kinds = {"numbers": "int64_list", "weights": "float_list", "names": "bytes_list"}
    return any(name in kinds and feature.WhichOneof("kind") not in (None, kinds[name]) for name, feature in found)
