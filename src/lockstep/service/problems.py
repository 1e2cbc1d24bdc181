"""The current problems of the service: which part has a problem, since when, and what waits because of it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, final

LOGGER: Final = logging.getLogger(__name__)


@final
class Part(StrEnum):
    """A part that the service depends on."""

    ENGINE = "engine"
    DATABASE = "database"
    BUCKET = "bucket"
    DISK = "disk"
    MACHINES = "machines"


@final
@dataclass(frozen=True, kw_only=True)
class Problem:
    """A problem of one part.

    Attributes:
        part: the part.
        text: a description of the problem, in one line.
        since_s: the time when the problem was first observed, in seconds since 1970 UTC.
        kept: a description of what waits until the problem is over; empty if nothing waits.
    """

    part: Part
    text: str
    since_s: float
    kept: str = ""


@final
class Problems:
    """The parts that have a problem now. Thread-safe.

    Args:
        clock: the clock, in seconds since 1970 UTC.
    """

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._found: dict[Part, Problem] = {}

    def note(self, part: Part, text: str, *, kept: str = "") -> None:
        """Records that a part has a problem. If the part already had a problem, the time of the first one is kept."""
        text = " ".join(text.split())
        with self._lock:
            before = self._found.get(part)
            since_s = self._clock() if before is None else before.since_s
            self._found[part] = Problem(part=part, text=text, since_s=since_s, kept=kept)
        if before is None or before.text != text:
            LOGGER.warning("%s: %s", part, text)

    def clear(self, part: Part) -> None:
        """Records that a part has no problem any more."""
        with self._lock:
            before = self._found.pop(part, None)
        if before is not None:
            LOGGER.warning("%s: recovered after %.0f s", part, self._clock() - before.since_s)

    def has(self, part: Part) -> bool:
        """Whether a part has a problem."""
        with self._lock:
            return part in self._found

    def all(self) -> list[Problem]:
        """Returns all problems, the oldest first."""
        with self._lock:
            return sorted(self._found.values(), key=lambda problem: problem.since_s)
