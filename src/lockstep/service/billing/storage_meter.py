"""Measures what jobs keep in the bucket: once an hour, in a thread of its own, so many jobs at a time.

Looked at are the folders of jobs that are not over, of those that have ended since the round before, and, in turn, of
some others, in case that somebody removes some of what they kept.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, final

from lockstep.errors import StorageError, counted
from lockstep.service.store import DATABASE_FAULTS, KeepingJob, LeaseLostError, StoredSizeStore
from lockstep.storage import AbstractBucket

LOGGER: Final = logging.getLogger(__name__)

INTERVAL_S: Final = 3600.0
"""Pause between two rounds."""

POLL_S: Final = 60.0
"""How often it is asked whether a round is due."""

NUM_NEW: Final = 1000
"""How many jobs that are not over, or have been since the round before, are looked at in a round."""

NUM_OTHERS: Final = 200
"""How many others are."""

NOWHERE: Final = ".lockstep-nothing"
"""Where nothing ever lies: a bucket that cannot list that can list nothing."""


@final
class StorageMeter:
    """Looks through the jobs' folders of the service's bucket.

    Args:
        bucket: the service's.
        sizes: where what is found is kept.
        clock: seconds since 1970 UTC.
    """

    def __init__(
        self, *, bucket: AbstractBucket, sizes: StoredSizeStore, clock: Callable[[], float] = time.time
    ) -> None:
        self._bucket = bucket
        self._sizes = sizes
        self._clock = clock
        self._round_s: float | None = None
        self._last: KeepingJob | None = None

    def run(self, stop: threading.Event, *, is_mine: Callable[[], bool]) -> None:
        """Makes rounds until told to stop.

        Args:
            stop: ends it.
            is_mine: whether it is this service that measures; of several over one database one does.
        """
        while not stop.wait(POLL_S):
            if is_mine() and (self._round_s is None or not 0 <= self._clock() - self._round_s < INTERVAL_S):
                try:
                    self.step(stop)
                except (*DATABASE_FAULTS, LeaseLostError) as error:
                    LOGGER.warning("what jobs keep cannot be recorded: %s", type(error).__name__)
                except StorageError as error:
                    LOGGER.warning("what jobs keep cannot be measured: %s", error)
                except Exception:  # nothing may end what measures
                    LOGGER.exception("a round over what jobs keep failed")

    def step(self, stop: threading.Event) -> None:
        """Makes one round; a folder that cannot be listed is passed over.

        Args:
            stop: ends it between two jobs.

        Raises:
            StorageError: the bucket cannot be listed; the next round is due at once.
        """
        now_s = self._clock()
        since_s = now_s - INTERVAL_S if self._round_s is None else self._round_s
        refused: list[StorageError] = []
        others = self._sizes.jobs_after(self._last, limit=NUM_OTHERS)
        for job in dict.fromkeys((*self._sizes.active_since(since_s, limit=NUM_NEW), *others)):
            if stop.is_set():
                return
            try:
                self._measure(job)
            except StorageError as error:  # of what a program made of its folder, unless the bucket itself is away
                self._bucket.folder_size_bytes(NOWHERE)
                refused.append(error)
        self._last = others[-1] if len(others) == NUM_OTHERS else None
        self._round_s = now_s
        if refused:
            LOGGER.warning("not measured: %s of jobs; the last: %s", counted(len(refused), "folder"), refused[-1])

    def _measure(self, job: KeepingJob) -> None:
        size_bytes = self._bucket.folder_size_bytes(f"{job.project}/jobs/{job.job_id}")
        self._sizes.record(job.uid, size_bytes=size_bytes, time_s=self._clock())
