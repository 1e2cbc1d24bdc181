"""Measures how long a program has given no sign."""

from __future__ import annotations

from typing import final


@final
class Silence:
    """Measures the time since a program's last sign: a heartbeat, or a line of output.

    Args:
        limit_s: the maximum time without a sign, in seconds; None for no limit.
        now: the time of a monotonic clock at the program's start, in seconds.
    """

    def __init__(self, *, limit_s: float | None, now: float) -> None:
        self._limit_s = limit_s
        self._since = now

    def record_sign(self, now: float) -> None:
        """Records a sign, or a time at which none was possible."""
        self._since = now

    def is_too_long(self, now: float) -> bool:
        """Returns whether the time since the last sign exceeds the limit."""
        return self._limit_s is not None and now - self._since > self._limit_s

    def describe(self, now: float) -> str:
        """Describes the silence, as in "600 s without a heartbeat or a line"."""
        return f"{now - self._since:.0f} s without a heartbeat or a line"
