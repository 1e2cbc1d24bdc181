"""Assigns the batches of an epoch to workers: each batch once, and several in a row to the same worker. Pure.

Data is fast to read in order. So a worker gets consecutive batches, and seldom has to seek. Faster workers get more
batches. A single worker gets all of them in order.
"""

from __future__ import annotations

from collections import deque
from typing import Final, final

LONGEST_STRETCH: Final = 64


@final
class BatchAllocation:
    """Assigns the numbers of batches.

    Not thread-safe: the owner serializes calls.

    Args:
        first: the first number.
        num_batches: the number of batches.
        num_workers: the expected number of workers.
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
        """Returns the next batch of a worker.

        Raises:
            IndexError: all batches have been assigned.
        """
        stretch = self._stretches.setdefault(worker, deque())
        if not stretch:
            if self._free:
                stretch.extend(self._free.popleft())
            else:  # end of the epoch: the last half of the longest stretch that is left
                longest = max(self._stretches.values(), key=len)
                stretch.extend(longest.pop() for _ in range((len(longest) + 1) // 2))
                stretch.reverse()
        return stretch.popleft()
