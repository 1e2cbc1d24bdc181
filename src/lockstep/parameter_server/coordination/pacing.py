"""How far a worker may be ahead of the slowest one. Pure."""

from __future__ import annotations

from typing import final


@final
class Pace:
    """Counts what workers have begun and ended.

    As stale synchronous parallel training does (Ho et al. 2013): a worker that is more than so many steps ahead of the
    slowest waits for it.

    Not safe for several threads at once: its owner serialises calls.

    Args:
        max_lead: how many closures a worker that begins another one may be ahead of the slowest; None for any number.
    """

    def __init__(self, *, max_lead: int | None = None) -> None:
        self._max_lead = max_lead
        self._begun: dict[str, int] = {}
        self._ended: dict[str, int] = {}

    def come(self, worker: str) -> None:
        """Counts a worker in, from where the slowest one is."""
        self._begun[worker] = self._ended[worker] = min(self._ended.values(), default=0)

    def go(self, worker: str) -> None:
        """Forgets a worker: nobody waits for it."""
        self._begun.pop(worker, None)
        self._ended.pop(worker, None)

    def begin(self, worker: str) -> None:
        """Notes that a worker was given a closure."""
        self._begun[worker] += 1

    def end(self, worker: str) -> None:
        """Notes that a worker has ended one, or given it back."""
        self._ended[worker] = min(self._ended[worker] + 1, self._begun[worker])

    def may_begin(self, worker: str) -> bool:
        """Whether a worker may be given another one now."""
        return self._max_lead is None or self._begun[worker] - min(self._ended.values()) <= self._max_lead
