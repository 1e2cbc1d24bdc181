"""For how long a program has given no sign."""

from __future__ import annotations

from typing import final


@final
class Silence:
    """Measures the time since a program's last sign: a heartbeat, or a line of output.

    Args:
        limit_s: how long a program may be silent; None for as long as it likes.
        now: seconds, growing, at its start.
    """

    def __init__(self, *, limit_s: float | None, now: float) -> None:
        self._limit_s = limit_s
        self._since = now

    def break_at(self, now: float) -> None:
        """Notes a sign, or a time at which none could come."""
        self._since = now

    def is_too_long(self, now: float) -> bool:
        """Whether the program has been silent for longer than it may."""
        return self._limit_s is not None and now - self._since > self._limit_s

    def describe(self, now: float) -> str:
        """Says it in words: "600 s without a heartbeat or a line"."""
        return f"{now - self._since:.0f} s without a heartbeat or a line"
