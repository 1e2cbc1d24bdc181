"""Reads the curves of jobs from their TensorBoard files: merged by run, thinned evenly, and kept for the next look."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from lockstep.errors import MissingInputError, counted
from lockstep.service.control.job_outputs import AbstractOutputFolder
from lockstep.service.telemetry.event_files import Curve, EventFile
from lockstep.storage import StoredObject

SCAN_S: Final = 0.5
"""The maximum time for reading files in one look, in seconds. The next look goes on."""
MAX_FILES: Final = 500
MAX_CURVES: Final = 2000
"""The maximum number of curves of a job, counted in each file."""
MAX_KEPT: Final = 2000
"""The number of points of a curve that are kept, or up to twice as many, while a job has few curves."""
MAX_JOB_POINTS: Final = 400_000
"""The number of points that decides how many of each curve are kept while a job has many curves."""
MAX_SHOWN_POINTS: Final = 50_000
"""The maximum number of points in one answer; each curve has fewer if there are many."""
MAX_CACHED_POINTS: Final = 2_000_000
"""The size of the cache, in points of 24 bytes. The jobs that were looked at least recently are evicted first."""
FILE_MARK: Final = "tfevents"
"""What TensorBoard recognizes its files by: a part of their names."""


@final
@dataclass(frozen=True, kw_only=True)
class TagCurve:
    """A curve of a run.

    Attributes:
        tag: its tag.
        steps: the steps, int64 of shape (n,), ascending.
        times_s: the times, in seconds since 1970 UTC, float64 of shape (n,).
        values: the values, float64 of shape (n,).
    """

    tag: str
    steps: np.ndarray
    times_s: np.ndarray
    values: np.ndarray


@final
@dataclass(frozen=True, kw_only=True)
class Scalars:
    """The curves of a job.

    Attributes:
        runs: pairs of a run's name and its curves, sorted by name and by tag. The name is the folder of its files,
            and "." for the folder of the job's TensorBoard files itself.
        notes: what was not read, and why.
        more: whether there is more to read, which the next look reads.
    """

    runs: tuple[tuple[str, tuple[TagCurve, ...]], ...]
    notes: tuple[str, ...]
    more: bool


@final
class _JobScalars:
    """What was read of a job's files."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.looked_s = float("-inf")
        self.more = False
        self.num_points = 0
        self._files: dict[str, EventFile] = {}
        self._sizes: dict[str, int] = {}
        self._num_curves = 0
        self._has_too_many = False
        self._num_files = 0

    def look(self, folder: AbstractOutputFolder, *, clock: Callable[[], float]) -> None:
        """Reads what was added to the files since the last look."""
        listed = [item for item in folder.files() if FILE_MARK in item.key.rpartition("/")[2]]
        self._num_files = len(listed)
        listed = listed[-MAX_FILES:]
        for key in self._files.keys() - {item.key for item in listed}:
            self._forget(key)
        deadline_s = clock() + SCAN_S
        self.more = False
        for item in listed:
            self._read(folder, item, is_late=lambda: clock() > deadline_s)
            if self.more or clock() > deadline_s:
                self.more = self.more or item is not listed[-1]
                break
        self.num_points = sum(len(curve) for file in self._files.values() for curve in file.curves.values())

    def _read(self, folder: AbstractOutputFolder, item: StoredObject, *, is_late: Callable[[], bool]) -> None:
        file = self._files.get(item.key)
        if file is not None and item.size_bytes < file.offset_bytes:  # another file of this name
            self._forget(item.key)
            file = None
        if file is None:
            file = self._files[item.key] = EventFile()
        if self._sizes.get(item.key) == item.size_bytes:
            return
        try:
            with folder.open(item.key) as opened:
                is_done = file.read_on(
                    opened, url=item.key, curve_of=self._curve_of, max_points=self._max_points, is_late=is_late
                )
        except MissingInputError:  # deleted since it was listed
            return
        if is_done:
            self._sizes[item.key] = item.size_bytes
        else:
            self.more = True

    @property
    def _max_points(self) -> int:
        return max(50, min(MAX_KEPT, MAX_JOB_POINTS // max(1, self._num_curves)))

    def _curve_of(self, file: EventFile, tag: str) -> Curve | None:
        if self._num_curves >= MAX_CURVES:
            self._has_too_many = True
            return None
        self._num_curves += 1
        return file.curves.setdefault(tag, Curve())

    def _forget(self, key: str) -> None:
        self._num_curves -= len(self._files.pop(key).curves)
        self._sizes.pop(key, None)

    def notes(self) -> Iterator[str]:
        """Yields what was not read, and why."""
        if self._num_files > MAX_FILES:
            yield f"only the last {MAX_FILES} of {counted(self._num_files, 'file')} were read"
        if self._has_too_many:
            yield f"only the first {MAX_CURVES:,} curves were read"
        yield from [file.damage for file in self._files.values() if file.damage is not None][:10]

    def runs(self, *, tags: Sequence[str], max_points: int) -> Iterator[tuple[str, tuple[TagCurve, ...]]]:
        """Yields the curves by run."""
        by_run: dict[str, list[EventFile]] = {}
        for key in sorted(self._files):  # the names of files begin with their time
            by_run.setdefault(key.rpartition("/")[0] or ".", []).append(self._files[key])
        num_curves = len({(run, tag) for run, files in by_run.items() for file in files for tag in file.curves})
        max_points = max(2, min(max_points, MAX_SHOWN_POINTS // max(1, num_curves)))
        for run, files in sorted(by_run.items()):
            found = {tag for file in files for tag in file.curves if not tags or tag in tags}
            curves = (_merged(files, tag=tag, max_points=max_points) for tag in sorted(found))
            shown = tuple(curve for curve in curves if curve.steps.size)
            if shown:
                yield run, shown


@final
class ScalarCache:
    """Reads the curves of jobs, and keeps what it has read. Thread-safe.

    Of a file that has grown, only what was added is read. One thread at a time reads the files of a job; those that
    have waited for it use what it has read.

    Args:
        max_points: the size of the cache, in points.
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, *, max_points: int = MAX_CACHED_POINTS, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_points = max_points
        self._clock = clock
        self._lock = threading.Lock()
        self._jobs: OrderedDict[str, _JobScalars] = OrderedDict()

    def read(self, uid: str, folder: AbstractOutputFolder, *, tags: Sequence[str], max_points: int) -> Scalars:
        """Returns the curves of a job, as far as they could be read within `SCAN_S`.

        Args:
            uid: the uid of the job.
            folder: the folder of its TensorBoard files.
            tags: the tags of the curves; all if empty.
            max_points: the maximum number of points of a curve, which are chosen evenly; the last one is always there.

        Raises:
            StorageError: If the folder cannot be read.
        """
        came_s = self._clock()
        with self._lock:
            job = self._jobs.setdefault(uid, _JobScalars())
            self._jobs.move_to_end(uid)
        with job.lock:
            if job.looked_s < came_s:
                job.look(folder, clock=self._clock)
                job.looked_s = self._clock()
            found = Scalars(
                runs=tuple(job.runs(tags=tags, max_points=max_points)), notes=tuple(job.notes()), more=job.more
            )
        with self._lock:
            left = self._max_points
            for key in reversed(list(self._jobs)):
                left -= self._jobs[key].num_points
                if left < 0 and key != uid:
                    del self._jobs[key]
        return found


def _merged(files: Sequence[EventFile], *, tag: str, max_points: int) -> TagCurve:
    """Returns a tag's curve over all files of a run.

    A later file replaces what an earlier one has for the same step. A file of a restarted program makes void what
    earlier ones have from its first step on.
    """
    steps, times, values = np.empty(0, np.int64), np.empty(0), np.empty(0)
    for file in files:
        if file.restarted_at is not None:
            kept = steps < file.restarted_at
            steps, times, values = steps[kept], times[kept], values[kept]
        curve = file.curves.get(tag)
        if curve is not None:
            more = curve.arrays()
            steps, times, values = (np.concatenate(pair) for pair in zip((steps, times, values), more, strict=True))
    order = np.argsort(steps, kind="stable")
    steps, times, values = steps[order], times[order], values[order]
    is_last = np.append(steps[1:] != steps[:-1], True) if steps.size else np.empty(0, bool)
    steps, times, values = steps[is_last], times[is_last], values[is_last]
    if steps.size > max_points:
        chosen = np.unique(np.linspace(0, steps.size - 1, max_points).round().astype(np.int64))
        steps, times, values = steps[chosen], times[chosen], values[chosen]
    return TagCurve(tag=tag, steps=steps, times_s=times, values=values)
