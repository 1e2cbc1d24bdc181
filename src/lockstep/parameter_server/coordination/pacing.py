"""The limit on how far a worker may be ahead of the slowest one. Pure."""

from __future__ import annotations

from typing import final


@final
class Pace:
    """Counts the steps that workers have begun and ended.

    A worker that is more than `max_lead` steps ahead of the slowest one waits for it, as in stale synchronous parallel
    training (Ho et al. 2013).

    Not thread-safe: the owner serializes calls.

    Args:
        max_lead: the number of steps that a worker may be ahead of the slowest one when it begins a step; None for no
            limit.
    """

    def __init__(self, *, max_lead: int | None = None) -> None:
        self._max_lead = max_lead
        self._begun: dict[str, int] = {}
        self._ended: dict[str, int] = {}

    def add(self, worker: str) -> None:
        """Adds a worker, at the position of the slowest one."""
        self._begun[worker] = self._ended[worker] = min(self._ended.values(), default=0)

    def remove(self, worker: str) -> None:
        """Removes a worker. The others do not wait for it any more."""
        self._begun.pop(worker, None)
        self._ended.pop(worker, None)

    def begin(self, worker: str, num_steps: int = 1) -> None:
        """Records that a worker was given steps."""
        self._begun[worker] += num_steps

    def end(self, worker: str, num_steps: int = 1) -> None:
        """Records that a worker has ended steps, or has given them back."""
        self._ended[worker] = min(self._ended[worker] + num_steps, self._begun[worker])

    def may_begin(self, worker: str, num_steps: int = 1) -> bool:
        """Whether a worker may be given this number of steps now, without being too far ahead at the last of them."""
        if self._max_lead is None:
            return True
        return self._begun[worker] + num_steps - 1 - min(self._ended.values()) <= self._max_lead
