"""The jobs past the queue, kept from pass to pass: only those that have changed are read again."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import final

from lockstep.service.store import JobRecord, JobStore, ReplicaChange


@final
class PlacedJobs:
    """Keeps the jobs that `JobStore.placed_jobs` returns. Thread-safe.

    What running replicas report is as it was when the job was read, with what was noted since.

    Args:
        store: the store of jobs.
    """

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._jobs: dict[str, JobRecord] = {}

    def read(self) -> list[JobRecord]:
        """Returns the jobs, the oldest first."""
        with self._lock:
            found = self._store.placed_jobs(known=self._jobs)
            self._jobs = {job.uid: job for job in found}
            return found

    def note_measured(self, changes: Sequence[ReplicaChange]) -> None:
        """Notes what `JobStore.update_replicas` has recorded of the jobs that were read last."""
        with self._lock:
            for uid, of_job in groupby(changes, key=attrgetter("uid")):
                replicas = list(self._jobs[uid].replicas)
                for change in of_job:
                    replicas[change.number] = change.replica
                self._jobs[uid] = replace(self._jobs[uid], replicas=tuple(replicas))

    def forget(self) -> None:
        """Forgets all jobs, because another service may have recorded what their replicas report."""
        with self._lock:
            self._jobs.clear()
