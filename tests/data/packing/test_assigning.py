import hashlib
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.data.packing.assigning import SplitAssigner, parse_fractions
from lockstep.errors import InvalidInputError

SHARES = {"train": 0.8, "val": 0.1, "test": 0.1}


def test_a_key_alone_decides() -> None:
    assigner = SplitAssigner(SHARES)
    for key in ("Cat/0.jpg", "0", "ключ", "\udcff"):
        point = int.from_bytes(hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "big")
        expected = "train" if point < 0.8 * 2**64 else "val" if point < 0.9 * 2**64 else "test"
        assert assigner.split_of(key) == expected
    # What is packed today stays on its side for good.
    assert [assigner.split_of(str(number)) for number in range(8)] == ["train", "test", *["train"] * 5, "test"]


def test_the_shares_are_kept() -> None:
    counts = Counter(map(SplitAssigner(SHARES).split_of, map(str, range(20_000))))
    assert counts["train"] / 20_000 == pytest.approx(0.8, abs=0.01)
    assert counts["val"] / 20_000 == pytest.approx(0.1, abs=0.01)


@given(keys=st.lists(st.text(max_size=8), unique=True, max_size=30), more=st.lists(st.text(max_size=8), max_size=30))
def test_no_record_changes_sides_when_data_grows(keys: list[str], more: list[str]) -> None:
    before = {key: SplitAssigner(SHARES).split_of(key) for key in keys}
    after = {key: SplitAssigner(SHARES).split_of(key) for key in [*more, *reversed(keys)]}
    assert {key: after[key] for key in keys} == before


def test_one_split_gets_all() -> None:
    assert SplitAssigner({"all": 1.0}).split_of("x") == "all"


def test_the_shares_are_read() -> None:
    assert parse_fractions("train=0.8, val=0.1,test=.1") == SHARES
    thirds = parse_fractions("a=0.333333,b=0.333333,c=0.333334")
    assert set(map(SplitAssigner(thirds).split_of, map(str, range(50)))) == {"a", "b", "c"}


@pytest.mark.parametrize(
    "text",
    ["train=0.8", "train=0.8,val=0.1", "a=1.5,b=-0.5", "a=nan,b=1", "a=0,b=1", "a=x", "a=0.5,a=0.5", "a/b=1", "=1", ""],
)
def test_shares_that_are_not_usable_are_named(text: str) -> None:
    with pytest.raises(InvalidInputError, match=r"the .*split"):
        parse_fractions(text)


def test_any_string_is_a_key() -> None:
    assigner = SplitAssigner({"train": 0.5, "test": 0.5})
    # Bytes that are no text, as names of files may have them, and half of a pair, as a program's string may.
    assert {assigner.split_of(key) for key in ("\udcff", "\ud800", "\ud801", "\ud802")} <= {"train", "test"}
