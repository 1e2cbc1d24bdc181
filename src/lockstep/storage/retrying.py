"""Trying again: how often, how long, and with which pauses."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, final

from lockstep.errors import InvalidInputError


@final
@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How long a bucket that throttles, or cannot be reached, is asked again, and how long one answer is waited for.

    The pauses double from ``first_pause_s`` to ``longest_pause_s``; each is cut by chance to between a half and the
    whole of it, so that many readers that were refused together do not come back together.

    Attributes:
        deadline_s: how long it is tried again, from the first failure on; 0 tries once. A call that makes progress is
            never cut short, so that the last attempt may end later.
        first_pause_s: the first pause.
        longest_pause_s: the longest one.
        connect_timeout_s: how long a connection may take.
        read_timeout_s: how long a server may be silent.
        monotonic_s: the clock.
        sleep: waits for some seconds.
        chance: returns a random number from 0 up to 1.
    """

    deadline_s: float = 60.0
    first_pause_s: float = 0.5
    longest_pause_s: float = 10.0
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 20.0
    monotonic_s: Callable[[], float] = field(default=time.monotonic, repr=False, compare=False)
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False, compare=False)
    chance: Callable[[], float] = field(default=random.random, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
            InvalidInputError: one is negative, or a time for an answer is 0.
        """
        for name in ("deadline_s", "first_pause_s", "longest_pause_s", "connect_timeout_s", "read_timeout_s"):
            is_timeout = name.endswith("timeout_s")
            value: float = getattr(self, name)
            if not (value > 0 or (value == 0 and not is_timeout)):
                raise InvalidInputError(f"{name}", received=value, allowed="above 0" if is_timeout else "0 or more")


DEFAULT_POLICY: Final = RetryPolicy()

QUICK_POLICY: Final = RetryPolicy(deadline_s=5.0, connect_timeout_s=5.0, read_timeout_s=5.0)
"""For callers that somebody waits for, or that have another way to go on."""


@final
class Attempts:
    """The attempts at one call.

    Args:
        policy: how long they go on.
    """

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._start_s = policy.monotonic_s()
        self._first_failure_s: float | None = None
        self._num_failures = 0

    @property
    def num_failures(self) -> int:
        """How many were counted so far."""
        return self._num_failures

    def wait_for_next(self) -> bool:
        """Counts a failure and waits until it is time to try again; False, at once, where it is time to give up."""
        policy = self._policy
        now_s = policy.monotonic_s()
        if self._first_failure_s is None:
            self._first_failure_s = now_s
        doubled = policy.first_pause_s * 2.0 ** min(self._num_failures, 30)
        pause_s = min(doubled, policy.longest_pause_s) * (0.5 + policy.chance() / 2)
        self._num_failures += 1
        if now_s - self._first_failure_s + pause_s > policy.deadline_s or policy.deadline_s == 0:
            return False
        policy.sleep(pause_s)
        return True

    def __str__(self) -> str:
        """Says how many there were over which time: "7 attempts over 61 s"."""
        elapsed_s = self._policy.monotonic_s() - self._start_s
        plural = "" if self._num_failures == 1 else "s"
        return f"{self._num_failures} attempt{plural} over {elapsed_s:.{0 if elapsed_s >= 10 else 1}f} s"
