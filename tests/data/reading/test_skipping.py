"""Records that cannot be read are skipped, so many and no more."""

import numpy as np
import pytest
from tests.data.reading.test_batches import epoch, make

from lockstep.data import Skip
from lockstep.errors import CorruptDataError, InvalidInputError


class Damaged:
    """Records of which some cannot be read."""

    def __init__(self, count: int, damaged: set[int]) -> None:
        self.count, self.damaged = count, damaged
        self.num_reads = 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        self.num_reads += 1
        if index in self.damaged:
            raise CorruptDataError(f"file.tfrec: record {index}: the checksum of its data does not match")
        return index


@pytest.mark.parametrize("read_ahead", [0, 4])
def test_records_that_cannot_be_read_are_skipped(read_ahead: int, caplog: pytest.LogCaptureFixture) -> None:
    source = Damaged(12, {0, 4, 5, 11})
    batches = make(source, batch_size=4, transform=np.array, on_error=Skip(4), read_ahead=read_ahead)
    for _ in range(2):
        assert [batch.tolist() for batch in batches] == [[1, 1, 2, 3], [6, 6, 6, 7], [8, 9, 10, 10]]
    assert sorted(batches.skipped) == [0, 4, 5, 11]
    assert batches.skipped[5] == "file.tfrec: record 5: the checksum of its data does not match"
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 4
    assert any("skipped record 5 " in line and "of at most 4): file.tfrec: record 5: " in line for line in lines)
    source.num_reads = 0
    list(batches)
    assert source.num_reads == 12  # those that are known are not tried again


def test_more_than_may_be_skipped_is_an_error() -> None:
    batches = make(Damaged(12, {0, 4, 5, 11}), batch_size=4, transform=np.array, on_error=Skip(2), read_ahead=2)
    iterator = iter(batches)
    assert next(iterator).tolist() == [1, 1, 2, 3]
    message = r"more unreadable records than may be skipped; the last one: file\.tfrec: record 5"
    with pytest.raises(CorruptDataError, match=message):
        next(iterator)
    with pytest.raises(InvalidInputError, match="the limit of Skip; received 0"):
        Skip(0)


@pytest.mark.parametrize(
    ("damaged", "expected"),
    [({4, 5, 6, 7}, [[0, 1, 2, 3], [3, 3, 3, 3], [8]]), ({0, 1, 2, 3, 8}, [[4, 4, 4, 4], [4, 5, 6, 7], [7]])],
)
def test_a_batch_without_a_whole_record_has_the_nearest_one(damaged: set[int], expected: list[list[int]]) -> None:
    batches = make(Damaged(9, damaged), batch_size=4, transform=np.array, on_error=Skip(8))
    assert epoch(batches) == expected
    assert set(batches.skipped) == damaged


@pytest.mark.parametrize("limit", [1, 100])
def test_no_whole_record_at_all_is_an_error(limit: int) -> None:
    source = Damaged(50, set(range(50)))
    batches = make(source, batch_size=1, transform=np.array, on_error=Skip(limit), read_ahead=0)
    iterator = iter(batches)
    for _ in range(2):
        with pytest.raises(CorruptDataError, match=r"no readable record found .* last error: file\.tfrec: record \d+"):
            next(iterator)
    assert source.num_reads <= 52


def test_what_was_skipped_ahead_and_dropped_counts_when_it_comes() -> None:
    batches = make(Damaged(6, {1, 4}), batch_size=3, transform=np.array, on_error=Skip(1), num_threads=1)
    assert next(iter(batches)).tolist() == [0, 0, 2]  # Keras looks at one, and drops what was made ahead with it
    assert batches._plan.make(0, 1).skipped.keys() == {4}
    with pytest.raises(CorruptDataError, match="more unreadable records than may be skipped"):
        list(batches)
