"""A wait for something that happens in another thread or process."""

from __future__ import annotations

import time
from collections.abc import Callable

TIMEOUT_S = 30.0


def wait_until(
    condition: Callable[[], object], *, timeout_s: float = TIMEOUT_S, what: Callable[[], str] = lambda: "the condition"
) -> None:
    """Returns once a condition holds; fails where it does not in time, with words for what did not come."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what()} did not come within {timeout_s:g} s"
        time.sleep(0.01)
