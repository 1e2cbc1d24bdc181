"""Which worker takes which batch of an epoch: each batch once, and each worker several in a row. Pure.

Data that is read in order is read fast; so a worker is given batches that follow each other, and jumps seldom. The
fastest workers take the most. One worker takes all of them in order.
"""

from __future__ import annotations

from collections import deque
from typing import Final, final

LONGEST_STRETCH: Final = 64


@final
class BatchAllocation:
    """Gives out the numbers of batches.

    Not safe for several threads at once: its owner serialises calls.

    Args:
        first: the first number.
        num_batches: how many there are.
        num_workers: how many workers there may be.
    """

    def __init__(self, *, first: int, num_batches: int, num_workers: int) -> None:
        length = max(1, min(LONGEST_STRETCH, num_batches // (4 * max(1, num_workers))))
        if num_workers <= 1:
            length = max(1, num_batches)
        self._free = deque(
            range(start, min(start + length, first + num_batches))
            for start in range(first, first + num_batches, length)
        )
        self._stretches: dict[str, deque[int]] = {}

    def take(self, worker: str) -> int:
        """Returns a worker's next batch.

        Raises:
            IndexError: all have been given out.
        """
        stretch = self._stretches.setdefault(worker, deque())
        if not stretch:
            if self._free:
                stretch.extend(self._free.popleft())
            else:  # the end of the epoch: the last half of the longest stretch that somebody has left
                longest = max(self._stretches.values(), key=len)
                stretch.extend(longest.pop() for _ in range((len(longest) + 1) // 2))
                stretch.reverse()
        return stretch.popleft()
