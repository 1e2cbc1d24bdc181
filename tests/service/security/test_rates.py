"""Rates of keys: a bucket of one second's requests."""

from __future__ import annotations

import pytest

from lockstep.errors import RateLimitError
from lockstep.service.security import rates
from lockstep.service.security.rates import Rates


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def _num_allowed(limits: Rates, name: str, *, per_second: float, tries: int = 100) -> int:
    allowed = 0
    for _ in range(tries):
        try:
            limits.take(name, per_second=per_second, whose="the key of ann")
        except RateLimitError:
            continue
        allowed += 1
    return allowed


def test_a_bucket_holds_the_requests_of_one_second_and_fills_at_the_rate() -> None:
    clock = Clock()
    limits = Rates(clock=clock)
    assert _num_allowed(limits, "k", per_second=20) == 20
    clock.now_s += 0.25
    assert _num_allowed(limits, "k", per_second=20) == 5
    clock.now_s += 3600
    assert _num_allowed(limits, "k", per_second=20) == 20
    assert _num_allowed(limits, "other", per_second=3) == 3, "each name has a bucket of its own"


def test_a_rate_below_one_still_allows_one_and_says_when_the_next_is_allowed() -> None:
    clock = Clock()
    limits = Rates(clock=clock)
    limits.take("k", per_second=0.1, whose="the key of ann")
    clock.now_s += 4
    with pytest.raises(
        RateLimitError, match=r"too many requests with the key of ann; allowed: 0\.1 a second"
    ) as caught:
        limits.take("k", per_second=0.1, whose="the key of ann")
    assert caught.value.retry_after_s == pytest.approx(6)
    assert caught.value.http_status == 429
    clock.now_s += 6.001
    limits.take("k", per_second=0.1, whose="the key of ann")


def test_a_changed_rate_applies_at_once() -> None:
    limits = Rates(clock=Clock())
    assert _num_allowed(limits, "k", per_second=2) == 2
    assert _num_allowed(limits, "k", per_second=5) == 5


def test_full_buckets_are_forgotten_and_empty_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "MAX_BUCKETS", 10)
    clock = Clock()
    limits = Rates(clock=clock)
    _num_allowed(limits, "spent", per_second=0.001)
    for number in range(50):
        limits.take(str(number), per_second=10, whose="a key")
        clock.now_s += 1
    assert len(limits._buckets) <= 11
    assert _num_allowed(limits, "spent", per_second=0.001) == 0
