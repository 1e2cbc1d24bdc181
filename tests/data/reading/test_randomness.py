"""Random numbers of records."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.data.reading.randomness import RecordRandom


@given(st.permutations(range(20)), st.integers(0, 2**63 - 1), st.integers(0, 1000), st.integers(1, 19))
def test_a_record_has_its_numbers_in_any_batch(order: list[int], seed: int, epoch: int, cut: int) -> None:
    whole = RecordRandom(range(20), seed=seed, epoch=epoch).uniform(5)
    parts = [RecordRandom(part, seed=seed, epoch=epoch).uniform(5) for part in (order[:cut], order[cut:])]
    np.testing.assert_array_equal(np.concatenate(parts), whole[order])
    np.testing.assert_array_equal(RecordRandom(range(20), seed=seed, epoch=epoch).uniform(2), whole[:, :2])


def test_the_numbers_are_the_same_on_every_machine() -> None:
    found = RecordRandom([0, 1, 2**40], seed=7, epoch=3, stream=1).uniform(2)
    np.testing.assert_array_equal(
        found,
        [
            [0.2928888904185696, 0.8178901149710801],
            [0.16837631704646672, 0.5756204025073788],
            [0.835863433650359, 0.24802072278359166],
        ],
    )


@pytest.mark.parametrize("other", [{"seed": 2}, {"epoch": 1}, {"stream": 1}])
def test_seeds_epochs_streams_and_names_differ(other: dict[str, int]) -> None:
    numbers = np.arange(2000)
    first = RecordRandom(numbers, seed=1, epoch=0)
    second = RecordRandom(numbers, **{"seed": 1, "epoch": 0, "stream": 0, **other})
    for found in (second, first.fork("mask")):
        assert abs(np.corrcoef(first.uniform(1)[:, 0], found.uniform(1)[:, 0])[0, 1]) < 0.1
    np.testing.assert_array_equal(first.fork("mask").uniform(3), first.fork("mask").uniform(3))
    assert len(first.fork("mask")) == 2000


def test_they_are_uniform_and_independent() -> None:
    found = RecordRandom(np.arange(20_000), seed=0, epoch=0).uniform(4)
    assert found.min() >= 0
    assert found.max() < 1
    for column in found.T:
        counts = np.histogram(column, 50, (0, 1))[0]
        assert ((counts - 400) ** 2 / 400).sum() < 100  # chi squared of 49 degrees: less, but once in 30,000
    assert np.abs(np.corrcoef(found.T) - np.eye(4)).max() < 0.03
    neighbours = np.corrcoef(found[:-1, 0], found[1:, 0])[0, 1]
    assert abs(neighbours) < 0.03
