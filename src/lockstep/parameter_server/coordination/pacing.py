"""How far a worker may be ahead of the slowest one. Pure."""

from __future__ import annotations

from typing import final


@final
class Pace:
    """Counts the steps that workers have begun and ended.

    As stale synchronous parallel training does (Ho et al. 2013): a worker that is more than so many steps ahead of the
    slowest waits for it.

    Not safe for several threads at once: its owner serialises calls.

    Args:
        max_lead: how many steps a worker that begins another one may be ahead of the slowest; None for any number.
    """

    def __init__(self, *, max_lead: int | None = None) -> None:
        self._max_lead = max_lead
        self._begun: dict[str, int] = {}
        self._ended: dict[str, int] = {}

    def add(self, worker: str) -> None:
        """Counts a worker in, from where the slowest one is."""
        self._begun[worker] = self._ended[worker] = min(self._ended.values(), default=0)

    def remove(self, worker: str) -> None:
        """Forgets a worker: nobody waits for it."""
        self._begun.pop(worker, None)
        self._ended.pop(worker, None)

    def begin(self, worker: str, num_steps: int = 1) -> None:
        """Notes that a worker was given steps."""
        self._begun[worker] += num_steps

    def end(self, worker: str, num_steps: int = 1) -> None:
        """Notes that a worker has ended some, or given them back."""
        self._ended[worker] = min(self._ended[worker] + num_steps, self._begun[worker])

    def may_begin(self, worker: str, num_steps: int = 1) -> bool:
        """Whether a worker may be given so many more now: not where it would be too far ahead at the last of them."""
        if self._max_lead is None:
            return True
        return self._begun[worker] + num_steps - 1 - min(self._ended.values()) <= self._max_lead
