"""Counts the requests that a prediction server is answering, and for how long."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import final


@final
class OpenRequests:
    """Counts requests from their arrival to their answer, so that a mean over any time is the difference of two sums.

    Not thread-safe: for one event loop.

    Args:
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._num_open = 0
        self._changed = clock()
        self._open_s = 0.0
        self._busy_s = 0.0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Counts a request while the block runs."""
        self._add()
        self._num_open += 1
        try:
            yield
        finally:
            self._add()
            self._num_open -= 1

    @property
    def num_open(self) -> int:
        """The number of requests now."""
        return self._num_open

    @property
    def open_s(self) -> float:
        """The sum of the times that requests have been open, in seconds."""
        self._add()
        return self._open_s

    @property
    def busy_s(self) -> float:
        """For how long at least one request was open, in seconds."""
        self._add()
        return self._busy_s

    def _add(self) -> None:
        now = self._clock()
        passed, self._changed = now - self._changed, now
        self._open_s += self._num_open * passed
        self._busy_s += passed if self._num_open else 0.0
