"""Uploads a replica's samples in segments of one hour.

A segment is an object named for the time of its first sample, such as ``001732270000123.jsonl``. While it grows, it is
rewritten as a whole every few seconds; once the next one has begun, it is never changed again. A reader therefore finds
the segments of a period by their names alone, and a day has two dozen objects. If a bucket hangs, an older write of the
last segment may be the one that remains: a few seconds of samples are then missing, but none is wrong.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from pathlib import Path
from typing import Final, final

from lockstep.errors import LockstepError
from lockstep.jobs.running.metrics import Sample, encode_sample
from lockstep.spools import keep_segment
from lockstep.storage import QUICK_POLICY, AbstractBucket, open_bucket

FLUSH_INTERVAL_S: Final = 10.0
SEGMENT_SAMPLES: Final = 720
NUM_WAITING_MAX: Final = 48
"""The maximum number of finished segments in memory while a bucket fails: two days."""


def sample_key(time_s: float) -> str:
    """Returns the object name of the segment whose first sample has this time."""
    return f"{round(time_s * 1000):015d}.jsonl"


def key_time_s(key: str) -> float | None:
    """Returns the time of a segment's first sample according to its name; None if it is not the name of a segment."""
    number, _, rest = key.partition(".")
    return int(number) / 1000 if number.isdecimal() and rest == "jsonl" else None


@final
class SeriesWriter:
    """Uploads samples from a thread of its own.

    Args:
        url: the bucket URL for the segments.
        spool: the folder for segments that the bucket did not accept before the end; the service uploads them later.
    """

    def __init__(self, url: str, *, spool: Path) -> None:
        self._bucket: AbstractBucket = open_bucket(url, policy=QUICK_POLICY)
        self._spool = spool
        self._lock = threading.Condition()
        self._last_time_s = 0.0
        self._key = ""
        self._lines: list[bytes] = []
        self._is_changed = False
        self._waiting: deque[tuple[str, bytes]] = deque(maxlen=NUM_WAITING_MAX)
        self._closed = False
        self._thread = threading.Thread(target=self._upload_loop, name="series-writer", daemon=True)
        self._thread.start()

    def add(self, sample: Sample) -> None:
        """Adds a sample. Does not block. Drops a sample that is not after the last one: the clock was set back."""
        if sample.time_s <= self._last_time_s:
            return
        with self._lock:
            self._last_time_s = sample.time_s
            if not self._lines:
                self._key = sample_key(sample.time_s)
            self._lines.append(encode_sample(sample))
            self._is_changed = True
            if len(self._lines) >= SEGMENT_SAMPLES:
                self._waiting.append((self._key, b"".join(self._lines)))
                self._lines = []
                self._is_changed = False

    def close(self, *, timeout_s: float) -> bool:
        """Uploads the remaining samples, and ends the thread.

        Args:
            timeout_s: how long to wait for the bucket, in seconds.

        Returns:
            Whether everything is in the bucket. The rest is in the spool folder, beside a file with the series' URL.
        """
        with self._lock:
            self._closed = True
            self._lock.notify()
        self._thread.join(timeout_s)
        with self._lock:
            left = self._remaining()
            if left:
                self._move_to_spool(left)
            return not left

    def _remaining(self) -> list[tuple[str, bytes]]:
        return [*self._waiting, *([(self._key, b"".join(self._lines))] if self._is_changed else [])]

    def _upload_loop(self) -> None:
        closed = False
        while not closed:
            with self._lock:
                if not self._closed:
                    self._lock.wait(FLUSH_INTERVAL_S)
                closed = self._closed
                left = self._remaining()
                num_lines = len(self._lines)
            with contextlib.suppress(LockstepError):  # the next round retries
                for key, data in left:
                    self._bucket.write(key, data)
                    self._mark_uploaded(key, data, num_lines=num_lines)

    def _mark_uploaded(self, key: str, data: bytes, *, num_lines: int) -> None:
        """Records that a segment is in the bucket, as it was when the current segment had a number of lines."""
        with self._lock:
            if self._waiting and self._waiting[0] == (key, data):
                self._waiting.popleft()
            elif self._key == key and len(self._lines) == num_lines:
                self._is_changed = False

    def _move_to_spool(self, left: list[tuple[str, bytes]]) -> None:
        with contextlib.suppress(OSError):  # without a disk they are lost, but the program's end is reported
            for key, data in left:
                keep_segment(self._spool, url=self._bucket.url, key=key, data=data)
