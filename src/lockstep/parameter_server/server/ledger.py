"""Which pushes a server has applied: each once, however often it comes. Pure.

A push is known by its closure's number and by its own number within the closure: a closure that is run again, by
another worker, changes nothing that its first run has changed already.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, final

CLOSURES_OF_A_RUN: Final = 1 << 32
"""A coordinator that takes a training up begins with a multiple of this: what workers of the one before it still push
is of closures below that, and comes too late."""


@final
@dataclass(frozen=True, kw_only=True, order=True)
class PushId:
    """A push's name.

    Attributes:
        closure: the number of the closure that made it.
        number: its index among the pushes of that closure, from 0.
    """

    closure: int
    number: int


@final
class PushLedger:
    """The pushes that were applied, but for those of closures that nobody will run again.

    Args:
        watermark: closures below it have ended: what still comes of them is late.
        applied: pushes of others that were applied.
        num_applied: how many were applied in all.
    """

    def __init__(self, *, watermark: int = 0, applied: Iterable[PushId] = (), num_applied: int = 0) -> None:
        self._watermark = watermark
        self._applied = set(applied)
        self.num_applied = num_applied

    @property
    def watermark(self) -> int:
        """The lowest closure that may still push."""
        return self._watermark

    @property
    def applied(self) -> tuple[PushId, ...]:
        """The pushes that are remembered by their names, in order."""
        return tuple(sorted(self._applied))

    def __contains__(self, push: PushId) -> bool:
        return push in self._applied

    def take(self, push: PushId) -> bool:
        """Notes a push; returns whether it is to be applied: not where it was, or comes too late."""
        if push.closure < self._watermark or push in self._applied:
            return False
        self._applied.add(push)
        self.num_applied += 1
        return True

    def drop(self, pushes: Iterable[PushId]) -> None:
        """Takes pushes out that were noted, and are not applied after all."""
        for push in self._applied.intersection(pushes):
            self._applied.remove(push)
            self.num_applied -= 1

    def begin_run(self, *, is_first: bool) -> int:
        """Forgets what was applied: a coordinator begins a training of its own.

        Args:
            is_first: whether none has before.

        Returns:
            Its first closure: above all those of the one before, whose workers' pushes come too late now.
        """
        highest = max((push.closure for push in self._applied), default=0)
        first = 0 if is_first else (max(self._watermark, highest) // CLOSURES_OF_A_RUN + 1) * CLOSURES_OF_A_RUN
        self._watermark, self._applied, self.num_applied = first, set(), 0
        return first

    def raise_watermark(self, closure: int) -> None:
        """Forgets pushes of closures below one: the coordinator says that these have ended."""
        if closure > self._watermark:
            self._watermark = closure
            self._applied = {push for push in self._applied if push.closure >= closure}
