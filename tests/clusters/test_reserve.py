"""When the engine's reserve of worker processes is filled up; the embedded engine's tests look at the processes."""

from __future__ import annotations

import threading

import pytest

from lockstep.clusters.ray.reserve import REFILL_AFTER_S, WorkerReserve

TIMEOUT_S = 20.0


class Ray:
    def __init__(self) -> None:
        self.started: list[int] = []
        self.is_broken = False
        self.answers = threading.Event()
        self.answers.set()
        self.now = 100.0

    def start_workers(self, num_workers: int) -> None:
        self.started.append(num_workers)
        assert self.answers.wait(TIMEOUT_S)
        if self.is_broken:
            raise AttributeError("PrestartWorkersRequest")


@pytest.fixture
def ray() -> Ray:
    return Ray()


def make(ray: Ray, *, size: int) -> WorkerReserve:
    return WorkerReserve(size, clock=lambda: ray.now, start_workers=ray.start_workers)


def refill(reserve: WorkerReserve) -> None:
    """Lets it ask Ray, and waits for the answer."""
    reserve.refill()
    await_answer(reserve)


def await_answer(reserve: WorkerReserve) -> None:
    if reserve._asking is not None:  # `threading.enumerate` misses one that is about to end
        reserve._asking.join(TIMEOUT_S)


def test_what_a_gang_took_is_replaced_once_it_has_had_time_to_start(ray: Ray) -> None:
    reserve = make(ray, size=2)
    refill(reserve)
    reserve.take(1)
    refill(reserve)
    ray.now += REFILL_AFTER_S - 0.1
    reserve.take(1)
    ray.now += REFILL_AFTER_S - 0.1
    refill(reserve)
    assert ray.started == []
    ray.now += 0.1
    refill(reserve)
    refill(reserve)
    assert ray.started == [2]


def test_no_more_than_the_reserve_is_replaced(ray: Ray) -> None:
    reserve, none = make(ray, size=2), make(ray, size=0)
    for one in (reserve, none):
        one.take(9)
    ray.now += REFILL_AFTER_S
    for one in (reserve, none):
        refill(one)
    assert ray.started == [2]


def test_gangs_start_where_ray_has_no_such_call(ray: Ray) -> None:
    reserve = make(ray, size=2)
    ray.is_broken = True
    for _ in range(2):
        reserve.take(2)
        ray.now += REFILL_AFTER_S
        refill(reserve)
    assert ray.started == [2, 2]


def test_a_ray_that_hangs_keeps_nobody_and_is_asked_once(ray: Ray) -> None:
    reserve = make(ray, size=2)
    ray.answers.clear()
    for _ in range(3):
        reserve.take(2)
        ray.now += REFILL_AFTER_S
        reserve.refill()
    ray.answers.set()
    await_answer(reserve)
    assert ray.started == [2]
    refill(reserve)
    assert ray.started == [2, 2]
