"""Measures how long a program has given no sign."""

from __future__ import annotations

from typing import final

from lockstep.jobs.running.orders import ReplicaOrder


@final
class Silence:
    """Measures the time since a program's last sign.

    A heartbeat is a sign. So is a line of output, except of a server: a server that cannot answer may still print.

    Args:
        order: the order of the program's replica, which has the limits.
        now: the time of a monotonic clock at the program's start, in seconds.
    """

    def __init__(self, order: ReplicaOrder, *, now: float) -> None:
        self._server = order.server
        self._stuck_after_s = order.stuck_after_s
        self._since = now
        self._has_heartbeat = False

    def record_start(self, now: float) -> None:
        """Records that the program has started."""
        self._since = now

    def record_heartbeat(self, now: float) -> None:
        """Records a heartbeat."""
        self._since = now
        self._has_heartbeat = True

    def record_line(self, now: float) -> None:
        """Records a line of output, or a time at which the program could not print one."""
        if self._server is None:
            self._since = now

    def is_too_long(self, now: float) -> bool:
        """Returns whether the time since the last sign exceeds the limit."""
        return self._limit_s is not None and now - self._since > self._limit_s

    def describe(self, now: float) -> str:
        """Describes the silence, as in "600 s without a heartbeat or a line"."""
        silent_s = now - self._since
        if self._server is None:
            return f"{silent_s:.0f} s without a heartbeat or a line"
        if not self._has_heartbeat:
            return f"it was not ready within {self._server.ready_within_s:.0f} s"
        return f"it did not respond for {silent_s:.0f} s"

    @property
    def _limit_s(self) -> float | None:
        if self._server is None:
            return self._stuck_after_s
        return self._server.silent_within_s if self._has_heartbeat else self._server.ready_within_s
