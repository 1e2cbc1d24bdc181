"""Which queued jobs start, and what the others are told."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lockstep.jobs import Capacity, QueuedJob, decide


def job(uid: str, *, priority: int = 0, create_time_s: float = 0.0) -> QueuedJob:
    return QueuedJob(uid=uid, project="local", priority=priority, create_time_s=create_time_s)


def test_priority_goes_before_age() -> None:
    queue = [job("old", create_time_s=1), job("new", create_time_s=2), job("urgent", create_time_s=3, priority=7)]
    decision = decide(queue, capacity=Capacity(max_running_jobs=2, running_jobs=0))
    assert decision.starts == ("urgent", "old")
    assert list(decision.waiting) == ["new"]


def test_a_job_that_waits_is_told_what_for() -> None:
    queue = [job("a", create_time_s=1), job("b", create_time_s=2), job("c", create_time_s=3)]
    decision = decide(queue, capacity=Capacity(max_running_jobs=4, running_jobs=3))
    assert decision.starts == ("a",)
    assert [(waiting.position, waiting.reason) for waiting in decision.waiting.values()] == [
        (1, "position 1: 4 of 4 jobs run; it starts when one has ended"),
        (2, "position 2: 4 of 4 jobs run; it starts when 2 have ended"),
    ]


def test_a_lowered_limit_is_told_too() -> None:
    decision = decide([job("a")], capacity=Capacity(max_running_jobs=1, running_jobs=3))
    assert decision.starts == ()
    assert decision.waiting["a"].reason == "position 1: 3 of 1 jobs run; it starts when 3 have ended"


def test_a_service_without_room_says_so() -> None:
    decision = decide([job("a")], capacity=Capacity(max_running_jobs=0, running_jobs=0))
    assert decision.waiting["a"].reason == "position 1: this service is set to run no jobs"


def test_an_empty_queue_starts_nothing() -> None:
    decision = decide([], capacity=Capacity(max_running_jobs=4, running_jobs=0))
    assert (decision.starts, decision.waiting) == ((), {})


@given(
    jobs=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=12),
    most=st.integers(0, 6),
    running=st.integers(0, 8),
    seed=st.randoms(use_true_random=False),
)
def test_every_job_is_decided_once_and_in_order(jobs: list[tuple[int, int]], most: int, running: int, seed) -> None:
    queue = [job(f"job-{n}", priority=p, create_time_s=t) for n, (p, t) in enumerate(jobs)]
    capacity = Capacity(max_running_jobs=most, running_jobs=running)
    decision = decide(queue, capacity=capacity)
    line = [*decision.starts, *decision.waiting]
    assert sorted(line) == sorted(item.uid for item in queue)
    by_uid = {item.uid: item for item in queue}
    keys = [(-by_uid[uid].priority, by_uid[uid].create_time_s) for uid in line]
    assert keys == sorted(keys)
    assert len(decision.starts) == min(len(queue), max(0, most - running))
    assert [waiting.position for waiting in decision.waiting.values()] == list(range(1, len(decision.waiting) + 1))
    shuffled = list(queue)
    seed.shuffle(shuffled)
    assert decide(shuffled, capacity=capacity) == decision
