"""The record of the pushes that a server has applied. A push is applied once, however often it arrives. Pure.

A push is identified by the number of its closure and by its own number within the closure. If another worker runs a
closure again, pushes that were applied in the first run are not applied again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, final

CLOSURES_OF_A_RUN: Final = 1 << 32
"""A coordinator that resumes a training begins with a multiple of this number. Workers of the previous coordinator push
for closures below it, so their pushes are rejected as late.
"""


@final
@dataclass(frozen=True, kw_only=True, order=True)
class PushId:
    """The identity of a push.

    Attributes:
        closure: the number of the closure that made the push.
        number: the index of the push among those of its closure, from 0.
    """

    closure: int
    number: int


@final
class PushLedger:
    """The applied pushes, except those of closures that will not run again.

    Args:
        watermark: the lowest closure that may still run. Pushes of closures below it are late.
        applied: the applied pushes of the other closures.
        num_applied: the number of all applied pushes.
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
        """The pushes that are still remembered, in order."""
        return tuple(sorted(self._applied))

    def __contains__(self, push: PushId) -> bool:
        return push in self._applied

    def record(self, push: PushId) -> bool:
        """Records a push. Returns whether to apply it: False if it was applied before, or comes too late."""
        if push.closure < self._watermark or push in self._applied:
            return False
        self._applied.add(push)
        self.num_applied += 1
        return True

    def drop(self, pushes: Iterable[PushId]) -> None:
        """Removes recorded pushes that are not applied after all."""
        for push in self._applied.intersection(pushes):
            self._applied.remove(push)
            self.num_applied -= 1

    def begin_run(self, *, is_first: bool) -> int:
        """Forgets all applied pushes, because a coordinator begins a new training.

        Args:
            is_first: whether this is the first training.

        Returns:
            The first closure of the training. It is above all closures of the previous one, whose pushes are late from
            now on.
        """
        highest = max((push.closure for push in self._applied), default=0)
        first = 0 if is_first else (max(self._watermark, highest) // CLOSURES_OF_A_RUN + 1) * CLOSURES_OF_A_RUN
        self._watermark, self._applied, self.num_applied = first, set(), 0
        return first

    def raise_watermark(self, closure: int) -> None:
        """Forgets the pushes of closures below `closure`: the coordinator reports that these have ended."""
        if closure > self._watermark:
            self._watermark = closure
            self._applied = {push for push in self._applied if push.closure >= closure}
