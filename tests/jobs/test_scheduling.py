"""Which queued jobs start, and what the others are told."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.jobs import Capacity, QueuedJob, choose, waiting


def job(uid: str, *, priority: int = 0, create_time_s: float = 0.0) -> QueuedJob:
    return QueuedJob(uid=uid, project="local", priority=priority, create_time_s=create_time_s)


def test_priority_goes_before_age() -> None:
    queue = [job("old", create_time_s=1), job("new", create_time_s=2), job("urgent", create_time_s=3, priority=7)]
    assert choose(queue, capacity=Capacity(max_running_jobs=2, running_jobs=0)) == ("urgent", "old")


@pytest.mark.parametrize(
    ("position", "most", "running", "reason"),
    [
        (1, 4, 4, "position 1: 4 of 4 jobs run; it starts when one has ended"),
        (2, 4, 4, "position 2: 4 of 4 jobs run; it starts when 2 have ended"),
        (2, 4, 3, "position 2: 3 of 4 jobs run; it starts when one has ended"),
        (1, 4, 3, "position 1: it starts next"),
        (1, 1, 3, "position 1: 3 of 1 jobs run; it starts when 3 have ended"),
        (1, 0, 0, "position 1: this service is set to run no jobs"),
    ],
)
def test_a_job_that_waits_is_told_what_for(position: int, most: int, running: int, reason: str) -> None:
    told = waiting(position, capacity=Capacity(max_running_jobs=most, running_jobs=running))
    assert (told.position, told.reason) == (position, reason)


@given(
    jobs=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=12),
    most=st.integers(0, 6),
    running=st.integers(0, 8),
    seed=st.randoms(use_true_random=False),
)
def test_the_first_of_the_line_start_whatever_order_they_are_told_in(
    jobs: list[tuple[int, int]], most: int, running: int, seed: random.Random
) -> None:
    queue = [job(f"job-{n}", priority=p, create_time_s=t) for n, (p, t) in enumerate(jobs)]
    capacity = Capacity(max_running_jobs=most, running_jobs=running)
    starts = choose(queue, capacity=capacity)
    assert len(starts) == min(len(queue), max(0, most - running)) == len(set(starts))
    keys = {item.uid: (-item.priority, item.create_time_s) for item in queue}
    rest = [key for uid, key in keys.items() if uid not in starts]
    assert [keys[uid] for uid in starts] == sorted(keys[uid] for uid in starts)
    assert all(keys[uid] <= min(rest) for uid in starts if rest)
    shuffled = list(queue)
    seed.shuffle(shuffled)
    assert choose(shuffled, capacity=capacity) == starts
