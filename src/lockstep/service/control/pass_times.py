"""The durations of the controller's passes."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import final


@final
@dataclass(kw_only=True)
class PassTimes:
    """The number and duration of passes. `note` is thread-safe.

    Attributes:
        num_passes: the number of passes.
        total_s: the total duration of all passes, in seconds.
        last_s: the duration of the last pass, in seconds.
    """

    num_passes: int = 0
    total_s: float = 0.0
    last_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def note(self, took_s: float) -> None:
        """Adds a pass.

        Args:
            took_s: its duration, in seconds.
        """
        with self._lock:
            self.num_passes += 1
            self.total_s += took_s
            self.last_s = took_s
