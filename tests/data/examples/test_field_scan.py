"""Records that are gone through side by side: what is built otherwise is left, and hurts no other."""

from typing import Any

import numpy as np
import pytest
from tests.data.examples.wire import UNUSUAL, entry, example, field, varint

from lockstep.data import encode_example, encode_sequence_example
from lockstep.data.examples.columns import OTHER_KIND
from lockstep.data.examples.field_scan import FieldScan, copy_runs, decode_varints, scan_fields

GOOD = [encode_example({"x": list(range(number)) or np.empty(0, np.int64), "y": 1}) for number in range(12)]
X = {"x": "int64_list"}


def scan(records: list[bytes]) -> FieldScan:
    lengths = np.array([len(record) for record in records], np.int64)
    return FieldScan(np.frombuffer(b"".join(records), np.uint8), lengths=lengths)


def rows(found: Any) -> dict[int, list[Any]]:
    """The values by record."""
    counts = np.maximum(found.counts, 0)
    parts = np.split(found.values, np.cumsum(counts)[:-1]) if len(counts) else []
    return {number: part.tolist() for number, part in zip(found.numbers.tolist(), parts, strict=True)}


def packed(*numbers: int) -> bytes:
    return field(3, field(1, b"".join(varint(number) for number in numbers)))


TO_BE_LEFT = {
    "numbers that are not packed": UNUSUAL["numbers that are not packed"],
    "both forms at once": UNUSUAL["both forms at once"],
    "a name twice": UNUSUAL["a name twice"],
    "a name twice, once without a kind": UNUSUAL["a name twice, once without a kind"],
    "an unknown field": UNUSUAL["an unknown field"],
    "a feature in two parts": UNUSUAL["a feature in two parts"],
    "features in two parts": UNUSUAL["features in two parts"],
    "a feature of two kinds": example(entry("x", packed(1, 2) + field(2, field(1, b"\0\0\x80?")))),
    "a list of an unknown kind": example(entry("x", field(9, b""))),
    "a value of an unknown field": example(entry("x", field(3, field(2, b"\x01")))),
    "an entry of an unknown field": field(1, field(2, entry("x", packed(1)))),
    "an entry without a value": example(field(1, b"x")),
    "an entry of three parts": example(entry("x", packed(1)) + field(2, b"")),
    "an entry of two names": example(field(1, b"x") + field(1, b"x")),
    "an entry of a name and something else": example(field(1, b"x") + field(3, packed(1))),
    "a number that does not end": example(entry("x", field(3, field(1, b"\x01\x80")))),
    "a number of too many bytes": example(entry("x", field(3, field(1, b"\xff" * 10 + b"\x01")))),
    "a length that runs over": b"\x0a\x05\x0a",
    "a length of too many bytes": b"\x0a" + b"\xff" * 9 + b"\x01",
    "a tag of too many bytes": b"\xff" * 12,
    "a tag without a length": b"\x0a",
    "something else than messages": b"\x08\x01",
}


@pytest.mark.parametrize("record", TO_BE_LEFT.values(), ids=TO_BE_LEFT.keys())
@pytest.mark.parametrize("place", [0, 5, 12])
@pytest.mark.parametrize("num_others", [3, 12], ids=["one by one", "together"])
def test_what_is_built_otherwise_is_left(record: bytes, place: int, num_others: int) -> None:
    records = GOOD[:num_others]
    place = min(place, len(records))
    found = scan([*records[:place], record, *records[place:]])
    values = found.scan_examples(X)["x"]
    assert found.unparsed.tolist() == [False] * place + [True] + [False] * (len(records) - place)
    expected = {number + (number >= place): list(range(number)) for number in range(len(records))}
    assert rows(values) == expected


def test_the_value_may_stand_before_the_name() -> None:
    found = scan([UNUSUAL["the value before the name"], *GOOD])
    assert rows(found.scan_examples(X)["x"])[0] == [7]
    assert not found.unparsed.any()


def test_features_without_a_kind_and_of_another_kind() -> None:
    records = [example(entry("x", b"")), encode_example({"x": 0.5}), encode_example({"z": 1}), *GOOD, b""]
    found = scan(records)
    values = found.scan_examples(X)["x"]
    assert values.numbers.tolist() == [0, 1, *range(3, 15)]
    assert values.counts.tolist() == [0, OTHER_KIND, *range(12)]
    assert values.is_set.tolist() == [False] + [True] * 13
    assert not found.unparsed.any()


def test_features_in_two_parts_are_one_map() -> None:
    record = encode_example({"x": [4, 5]}) + encode_example({"y": [6]})
    found = scan([record, *GOOD])
    values = found.scan_examples({"x": "int64_list", "y": "int64_list"})
    assert (rows(values["x"])[0], rows(values["y"])[0], found.unparsed.any()) == ([4, 5], [6], False)


def test_floats_that_are_cut_are_left() -> None:
    good = [encode_example({"x": [float(number)]}) for number in range(10)]
    found = scan([example(entry("x", field(2, field(1, b"\0\0\x80?\0")))), *good])
    values = found.scan_examples({"x": "float_list"})["x"]
    assert rows(values) == {number + 1: [float(number)] for number in range(10)}
    assert np.flatnonzero(found.unparsed).tolist() == [0]


@pytest.mark.parametrize(
    "record",
    [
        field(3, b""),
        field(2, field(1, entry("a", field(2, packed(1))))),
        field(2, field(1, entry("a", field(1, packed(1)))) * 2),
        field(2, field(1, entry("a", field(1, packed(1) * 2)))),
        field(2, field(1, entry("a", field(1, field(3, b"\x08\x05"))))),
        field(2, field(1, entry("a", field(1, packed(1))))) * 2,
        encode_sequence_example({}, {"a": [1, 2]})[:-1],
    ],
)
def test_feature_lists_that_are_built_otherwise_are_left(record: bytes) -> None:
    good = [
        encode_sequence_example({"x": number}, {"a": [[1] * step for step in range(1, number)]}) for number in range(9)
    ]
    found = scan([*good[:4], record, *good[4:]])
    context, lists = found.scan_sequences(X, {"a": "int64_list"})
    assert np.flatnonzero(found.unparsed).tolist() == [4]
    assert rows(context["x"]) == {number + (number >= 4): [number] for number in range(9)}
    assert lists["a"].numbers.tolist() == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert lists["a"].num_entries.tolist() == [0, 0, 1, 2, 3, 4, 5, 6, 7]
    assert lists["a"].entries.counts.tolist() == [step for number in range(9) for step in range(1, number)]


@pytest.mark.parametrize(("step", "number_of_first"), [(1, 1), (30, 1), (1000, 1), (1, 14), (130, 15)])
def test_fields_of_messages_come_message_by_message(step: int, number_of_first: int) -> None:
    """Of lengths and numbers of one byte and of more, side by side."""
    counts = [0, 3, 20, 1] * 5
    messages = [b"".join(field(number_of_first + n % 3, b"x" * n * step) for n in range(count)) for count in counts]
    data = np.frombuffer(b"".join(messages), np.uint8)
    ends = np.cumsum([len(message) for message in messages])
    starts = ends - [len(message) for message in messages]
    numbers, spans, is_bad = scan_fields(data, starts, ends)
    assert spans.parents.tolist() == np.repeat(range(20), counts).tolist()
    assert (spans.ends - spans.starts).tolist() == [n * step for count in counts for n in range(count)]
    assert numbers.tolist() == [number_of_first + n % 3 for count in counts for n in range(count)]
    assert not is_bad.any()


@pytest.mark.parametrize("lengths", [[0, 0], [3, 3, 3], [1, 0, 70], [100, 90, 101]])
def test_runs_are_copied_behind_each_other(lengths: list[int]) -> None:
    data = np.random.default_rng(0).integers(0, 256, 1000, np.uint8)
    starts = np.array([700, 20, 300][: len(lengths)])
    found = copy_runs(data, starts, np.array(lengths))
    expected = [data[start : start + length] for start, length in zip(starts, lengths, strict=True)]
    assert found.tolist() == np.concatenate(expected).tolist()
    assert found.flags.writeable


def test_integers_of_runs_are_decoded() -> None:
    runs = [b"", varint(300) + varint(5), b"\xff" * 9 + b"\x01", b"\x81", varint(7), b"\x80" * 10 + b"\x00" + varint(3)]
    lengths = np.array([len(run) for run in runs])
    values, counts, is_good = decode_varints(np.frombuffer(b"".join(runs), np.uint8), lengths)
    assert is_good.tolist() == [True, True, True, False, True, False]
    assert counts.tolist() == [0, 2, 1, 1, 1, 2]
    assert values[[0, 1, 2, 4]].tolist() == [300, 5, -1, 7]
