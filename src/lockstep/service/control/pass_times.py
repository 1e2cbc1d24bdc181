"""How long the controller's passes take."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import final


@final
@dataclass(kw_only=True)
class PassTimes:
    """Adds them up. Thread-safe.

    Attributes:
        num_passes: how many there were.
        total_s: what they took together.
        last_s: what the last one took.
    """

    num_passes: int = 0
    total_s: float = 0.0
    last_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def note(self, took_s: float) -> None:
        """Adds one."""
        with self._lock:
            self.num_passes += 1
            self.total_s += took_s
            self.last_s = took_s
