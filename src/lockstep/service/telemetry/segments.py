"""A cache of log segments, so that many readers of a job's log read a slow bucket only once."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

from lockstep.errors import LockstepError, MissingInputError
from lockstep.storage import AbstractBucket

MAX_BYTES: Final = 32 * 1024 * 1024
"""The default size of a cache."""

OVERHEAD_BYTES: Final = 500
"""The approximate memory of a cached segment beyond its content."""


@final
@dataclass(frozen=True, kw_only=True)
class _CachedSegment:
    """The result of reading a segment.

    Attributes:
        data: the known content of the segment; None if the segment is missing.
        error: the error of the last read; None if it succeeded.
        fresh_until_s: the time, by the cache's clock, until which the bucket is not read again.
    """

    data: bytes | None = None
    error: LockstepError | None = None
    fresh_until_s: float

    @property
    def size_bytes(self) -> int:
        return OVERHEAD_BYTES + len(self.data or b"")

    def has_more_than(self, num_bytes: int) -> bool:
        """Whether more than this number of bytes is known."""
        return self.data is not None and len(self.data) > num_bytes


@final
class SegmentCache:
    """Reads and caches segments. One thread at a time reads a segment; the others wait for its result. Thread-safe.

    Cached content stays valid, because a segment is only ever written again with more at its end. The bucket is asked
    again for more, or for a missing segment, once the last result is as old as the time that its read took. So a fast
    bucket is read each time, and a slow one is not read by each of many readers.

    Args:
        max_bytes: the size of the cache. The least recently used segments are evicted first.
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, *, max_bytes: int = MAX_BYTES, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_bytes = max_bytes
        self._clock = clock
        self._changed = threading.Condition()
        self._cached: OrderedDict[str, _CachedSegment] = OrderedDict()
        self._num_bytes = 0
        self._in_flight: set[str] = set()

    @property
    def num_bytes(self) -> int:
        """The number of bytes that are cached now."""
        return self._num_bytes

    def read(self, bucket: AbstractBucket, key: str, start_byte: int) -> bytes:
        """Returns the content of a segment from a byte on.

        Args:
            bucket: the bucket of the segment.
            key: the key of the segment.
            start_byte: the number of bytes that the caller knows already.

        Raises:
            MissingInputError: If the segment does not exist.
            StorageError: If the segment cannot be read.
        """
        url = bucket.url_of(key)
        with self._changed:
            while url in self._in_flight:
                self._changed.wait()
            cached = self._cached.get(url)
            known = b"" if cached is None or cached.data is None else cached.data
            if cached is not None and (cached.has_more_than(start_byte) or self._clock() < cached.fresh_until_s):
                self._cached.move_to_end(url)
            else:
                cached = None
                self._in_flight.add(url)
        if cached is None:
            cached = self._fetch(bucket, key, known=known)
        if cached.error is not None and not cached.has_more_than(start_byte):
            raise cached.error.with_traceback(None)  # the shared error would collect the frames of all threads
        if cached.data is None:
            raise MissingInputError(f"there is no object {url}")
        return cached.data[start_byte:]

    def _fetch(self, bucket: AbstractBucket, key: str, *, known: bytes) -> _CachedSegment:
        url = bucket.url_of(key)
        cached: _CachedSegment | None = None
        try:
            cached = self._read_bucket(bucket, key, known=known)
            return cached
        finally:
            with self._changed:
                self._in_flight.discard(url)
                if cached is not None:
                    self._store(url, cached)
                self._changed.notify_all()

    def _read_bucket(self, bucket: AbstractBucket, key: str, *, known: bytes) -> _CachedSegment:
        began_s = self._clock()
        data: bytes | None = known or None
        error: LockstepError | None = None
        try:
            data = known + bucket.read(key, start_byte=len(known))
        except MissingInputError:
            data = None
        except LockstepError as raised:
            error = raised
        ended_s = self._clock()
        return _CachedSegment(data=data, error=error, fresh_until_s=ended_s + (ended_s - began_s))

    def _store(self, url: str, cached: _CachedSegment) -> None:
        earlier = self._cached.pop(url, None)
        self._num_bytes += cached.size_bytes - (0 if earlier is None else earlier.size_bytes)
        self._cached[url] = cached
        while self._num_bytes > self._max_bytes:
            _, oldest = self._cached.popitem(last=False)
            self._num_bytes -= oldest.size_bytes
