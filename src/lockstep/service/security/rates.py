"""Limits how many requests for predictions a key may send in a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

from lockstep.errors import RateLimitError

MAX_BUCKETS: Final = 1000
"""The number of buckets from which on full ones are removed. A full bucket is as good as none."""


@final
@dataclass(slots=True)
class _Bucket:
    """A token bucket: each request takes a token, and `per_second` tokens are added in a second, up to `size`."""

    per_second: float
    size: float
    num_tokens: float
    changed_s: float

    def fill(self, now_s: float) -> float:
        """Adds the tokens of the time that has passed; returns how many there are."""
        self.num_tokens = min(self.size, self.num_tokens + (now_s - self.changed_s) * self.per_second)
        self.changed_s = now_s
        return self.num_tokens


@final
class Rates:
    """Token buckets, by name, in the memory of this service. For one event loop.

    A bucket holds the requests of one second, and one request at least. So that many may come at once after a pause,
    and in the long run as many as the rate allows. Several services over one database count separately.

    Args:
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: dict[str, _Bucket] = {}

    def take(self, name: str, *, per_second: float, whose: str) -> None:
        """Takes a token from a bucket, which is made full at its first use.

        Args:
            name: the name of the bucket, such as the id of a key.
            per_second: how many requests are allowed in a second.
            whose: a description of the sender, for the error message.

        Raises:
            RateLimitError: If the bucket is empty. The error says after how many seconds there is a token again.
        """
        now_s = self._clock()
        bucket = self._buckets.get(name)
        if bucket is None or bucket.per_second != per_second:
            bucket = self._add(name, per_second=per_second, now_s=now_s)
        if bucket.fill(now_s) < 1:
            raise RateLimitError(
                f"too many requests with {whose}",
                allowed=f"{per_second:g} a second",
                action="try again after the time in Retry-After",
                retry_after_s=(1 - bucket.num_tokens) / per_second,
            )
        bucket.num_tokens -= 1

    def _add(self, name: str, *, per_second: float, now_s: float) -> _Bucket:
        if len(self._buckets) >= MAX_BUCKETS:
            self._buckets = {key: each for key, each in self._buckets.items() if each.fill(now_s) < each.size}
        size = max(1.0, per_second)
        bucket = _Bucket(per_second=per_second, size=size, num_tokens=size, changed_s=now_s)
        self._buckets[name] = bucket
        return bucket
