"""Retries: the policy that says how long to retry and how long to pause, and the attempts of one call."""

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
    """How long a failing or unreachable bucket is retried, and how long a response may take.

    The pauses double from ``first_pause_s`` to ``longest_pause_s``. Each pause is multiplied by a random factor between
    0.5 and 1 (jitter), so that many readers that failed together do not retry together.

    Attributes:
        deadline_s: the time, in seconds from the first failure, during which a call is retried; 0 disables retries. An
            attempt in progress is never interrupted, so the last one may end later.
        first_pause_s: the first pause, in seconds.
        longest_pause_s: the longest pause, in seconds.
        connect_timeout_s: the time limit for opening a connection, in seconds.
        read_timeout_s: the longest time without data from the server, in seconds.
        monotonic_s: the clock.
        sleep: the function that waits for a number of seconds.
        chance: the function that returns a random number in [0, 1).
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
            InvalidInputError: a number is negative, or a timeout is 0.
        """
        for name in ("deadline_s", "first_pause_s", "longest_pause_s", "connect_timeout_s", "read_timeout_s"):
            is_timeout = name.endswith("timeout_s")
            value: float = getattr(self, name)
            if not (value > 0 or (value == 0 and not is_timeout)):
                raise InvalidInputError(f"{name}", received=value, allowed="above 0" if is_timeout else "0 or more")


DEFAULT_POLICY: Final = RetryPolicy()

QUICK_POLICY: Final = RetryPolicy(deadline_s=5.0, connect_timeout_s=5.0, read_timeout_s=5.0)
"""A policy for calls that a user waits for, and for callers that have a fallback."""


@final
class Attempts:
    """The attempts of one call.

    Args:
        policy: the policy that ends the attempts and sets the pauses between them.
    """

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._start_s = policy.monotonic_s()
        self._first_failure_s: float | None = None
        self._num_failures = 0

    @property
    def num_failures(self) -> int:
        """The number of failed attempts so far."""
        return self._num_failures

    def count_failure_and_wait(self) -> bool:
        """Counts a failure and waits for the pause before the next attempt.

        Returns:
            False, without waiting, if the pause would end after the deadline.
        """
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
        """Returns the number of attempts and their time, such as "7 attempts over 61 s"."""
        elapsed_s = self._policy.monotonic_s() - self._start_s
        plural = "" if self._num_failures == 1 else "s"
        return f"{self._num_failures} attempt{plural} over {elapsed_s:.{0 if elapsed_s >= 10 else 1}f} s"
