"""Keeps what finished jobs used, so that reports neither read nor parse them again."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final, final

from lockstep.jobs.billing.costs import JobUsage

MAX_USAGES: Final = 100_000
"""Maximum number of kept intervals of replicas. A job without any counts as one."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class _Final:
    """What a finished job used.

    Attributes:
        used: the usage of all its attempts.
        version: the version of the job, which changes with its labels.
        first_end_s: the end of the attempt that ended first, in seconds since 1970 UTC.
    """

    used: JobUsage
    version: int
    first_end_s: float


@final
class FinalUsages:
    """Keeps what finished jobs used. What was added first is removed first. Thread-safe.

    Args:
        max_usages: the maximum number of kept intervals.
    """

    def __init__(self, *, max_usages: int = MAX_USAGES) -> None:
        self._max_usages = max_usages
        self._lock = threading.Lock()
        self._kept: dict[str, _Final] = {}
        self._num_usages = 0

    @property
    def num_usages(self) -> int:
        """The number of kept intervals."""
        return self._num_usages

    def get(self, uid: str, version: int, *, since_s: float) -> JobUsage | None:
        """Returns what a job used in attempts that ended at `since_s` or later; None if that is not known.

        Args:
            uid: the uid of the job.
            version: the present version of the job.
            since_s: the time, in seconds since 1970 UTC.
        """
        kept = self._kept.get(uid)
        return None if kept is None or kept.version != version or kept.first_end_s < since_s else kept.used

    def add(self, used: JobUsage, *, version: int, first_end_s: float) -> None:
        """Keeps what a job used.

        Args:
            used: the usage of all attempts of a job that is over.
            version: the version of the job.
            first_end_s: the end of the attempt that ended first, in seconds since 1970 UTC.
        """
        with self._lock:
            self._remove(used.uid)
            self._kept[used.uid] = _Final(used=used, version=version, first_end_s=first_end_s)
            self._num_usages += _size(used)
            while self._num_usages > self._max_usages:
                self._remove(next(iter(self._kept)))

    def _remove(self, uid: str) -> None:
        before = self._kept.pop(uid, None)
        if before is not None:
            self._num_usages -= _size(before.used)


def _size(used: JobUsage) -> int:
    return max(1, len(used.usages))
