"""Each batch of an epoch is given out once, several in a row to one worker."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.parameter_server.fitting.allocation import BatchAllocation


@given(st.integers(0, 400), st.integers(1, 5), st.randoms(use_true_random=False))
def test_each_batch_is_given_out_once_whoever_asks(num_batches: int, num_workers: int, random: object) -> None:
    allocation = BatchAllocation(first=7, num_batches=num_batches, num_workers=num_workers)
    workers = [f"worker {number}" for number in range(num_workers + 1)]  # one more than was thought
    taken = [allocation.take(random.choice(workers)) for _ in range(num_batches)]  # type: ignore[attr-defined]
    assert sorted(taken) == list(range(7, 7 + num_batches))


def test_one_worker_takes_all_in_order() -> None:
    allocation = BatchAllocation(first=10, num_batches=300, num_workers=1)
    assert [allocation.take("worker 0") for _ in range(300)] == list(range(10, 310))


def test_workers_jump_seldom() -> None:
    allocation = BatchAllocation(first=0, num_batches=1000, num_workers=2)
    places = [[allocation.take(f"worker {worker}") for worker in range(2)] for _ in range(500)]
    jumps = sum(now[worker] != before[worker] + 1 for before, now in itertools.pairwise(places) for worker in range(2))
    assert jumps < 40


def test_more_than_there_are_cannot_be_taken() -> None:
    allocation = BatchAllocation(first=0, num_batches=2, num_workers=2)
    allocation.take("worker 0")
    allocation.take("worker 1")
    with pytest.raises(IndexError):
        allocation.take("worker 0")
