"""A lock that threads get in the order in which they ask for it."""

from __future__ import annotations

import threading
from collections import deque
from typing import final


@final
class FairLock:
    """A lock whose waiters get it in their order. A `threading.Lock` may go to the thread that has just released it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Guards the other attributes."""
        self._is_held = False
        self._waiting: deque[threading.Lock] = deque()

    def acquire(self, *, timeout_s: float) -> bool:
        """Waits for the lock, at most for so many seconds; returns whether the caller has it."""
        with self._lock:
            if not self._is_held:
                self._is_held = True
                return True
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append(turn)
        if turn.acquire(timeout=timeout_s):
            return True
        with self._lock:
            if turn in self._waiting:
                self._waiting.remove(turn)
                return False
        return True  # it was given after the timeout

    def release(self) -> None:
        """Gives the lock to the one that waits longest. Any thread may call it for the one that has the lock."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._is_held = False
