"""Measures what jobs store in the bucket, once an hour, in a thread of its own.

A round lists the folders of active jobs and of jobs that ended since the last round. It also lists some folders of
other jobs, in turn, because somebody may have removed files from them.
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
"""Interval at which the thread checks whether a round is due."""

NUM_NEW: Final = 1000
"""Maximum number of jobs in a round that are active, or ended since the last round."""

NUM_OTHERS: Final = 200
"""Maximum number of other jobs in a round."""

NOWHERE: Final = ".lockstep-nothing"
"""A folder that never exists. If the bucket cannot list it, it cannot list anything."""


@final
class StorageMeter:
    """Measures the folders of jobs in the service's bucket.

    Args:
        bucket: the service's bucket.
        sizes: the store that the sizes are recorded in.
        clock: returns the present time, in seconds since 1970 UTC.
    """

    def __init__(
        self, *, bucket: AbstractBucket, sizes: StoredSizeStore, clock: Callable[[], float] = time.time
    ) -> None:
        self._bucket = bucket
        self._sizes = sizes
        self._clock = clock
        self._round_s: float | None = None
        self._last: KeepingJob | None = None

    def run(self, stop: threading.Event, *, has_lease: Callable[[], bool]) -> None:
        """Runs rounds until `stop` is set.

        Args:
            stop: the event that ends the loop.
            has_lease: returns whether this service has the lease. Of several services that share a database, only the
                holder measures.
        """
        while not stop.wait(POLL_S):
            if has_lease() and (self._round_s is None or not 0 <= self._clock() - self._round_s < INTERVAL_S):
                try:
                    self.step(stop)
                except (*DATABASE_FAULTS, LeaseLostError) as error:
                    LOGGER.warning("the sizes of jobs' folders cannot be recorded: %s", type(error).__name__)
                except StorageError as error:
                    LOGGER.warning("the sizes of jobs' folders cannot be measured: %s", error)
                except Exception:  # no error may end the thread
                    LOGGER.exception("a round of measuring jobs' folders failed")

    def step(self, stop: threading.Event) -> None:
        """Runs one round. A folder that cannot be listed is skipped.

        Args:
            stop: the event that ends the round between two jobs.

        Raises:
            StorageError: If the bucket cannot be listed; the next round is then due at once.
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
            except StorageError as error:  # a program broke its own folder, or the bucket is unavailable
                self._bucket.folder_size_bytes(NOWHERE)
                refused.append(error)
        self._last = others[-1] if len(others) == NUM_OTHERS else None
        self._round_s = now_s
        if refused:
            LOGGER.warning("not measured: %s of jobs; the last: %s", counted(len(refused), "folder"), refused[-1])

    def _measure(self, job: KeepingJob) -> None:
        size_bytes = self._bucket.folder_size_bytes(f"{job.project}/jobs/{job.job_id}")
        self._sizes.record(job.uid, size_bytes=size_bytes, time_s=self._clock())
