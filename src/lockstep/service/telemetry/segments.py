"""Segments of logs, read once for all who follow a job: a bucket may be far away, and answer late."""

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
"""How much is kept in all."""

OVERHEAD_BYTES: Final = 500
"""What is kept of a segment beside its content, about."""


@final
@dataclass(frozen=True, kw_only=True)
class _Answer:
    """What a bucket said of a segment.

    Attributes:
        data: its content, as far as it is known; None where it is not there.
        error: why it could not be said whether there is more.
        fresh_until_s: until when nobody asks again, by the cache's clock.
    """

    data: bytes | None = None
    error: LockstepError | None = None
    fresh_until_s: float

    @property
    def size_bytes(self) -> int:
        return OVERHEAD_BYTES + len(self.data or b"")

    def goes_beyond(self, num_bytes: int) -> bool:
        """Whether more of it is known than so many bytes."""
        return self.data is not None and len(self.data) > num_bytes


@final
class SegmentCache:
    """Reads segments, each by one thread at a time, for whoever wants it then. Thread-safe.

    What was read of a segment stays true: it is only ever written again with more at its end. Whether there is more,
    or a segment at all, is asked again once the last answer is as old as the bucket took to give it. So one that
    answers at once is asked each time, and one that is slow not by each of many readers.

    Args:
        max_bytes: how much to keep; what was not read for the longest time goes first.
        clock: seconds, growing.
    """

    def __init__(self, *, max_bytes: int = MAX_BYTES, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_bytes = max_bytes
        self._clock = clock
        self._changed = threading.Condition()
        self._answers: OrderedDict[str, _Answer] = OrderedDict()
        self._num_bytes = 0
        self._being_read: set[str] = set()

    @property
    def num_bytes(self) -> int:
        """How much is kept now."""
        return self._num_bytes

    def read(self, bucket: AbstractBucket, key: str, start_byte: int) -> bytes:
        """Returns what a segment holds from a byte on.

        Args:
            bucket: where it is.
            key: the segment.
            start_byte: how much of it is known to the caller.

        Raises:
            MissingInputError: it is not there.
            StorageError: it could not be read.
        """
        url = bucket.url_of(key)
        with self._changed:
            while url in self._being_read:
                self._changed.wait()
            answer = self._answers.get(url)
            known = b"" if answer is None or answer.data is None else answer.data
            if answer is not None and (answer.goes_beyond(start_byte) or self._clock() < answer.fresh_until_s):
                self._answers.move_to_end(url)
            else:
                answer = None
                self._being_read.add(url)
        if answer is None:
            answer = self._ask(bucket, key, known=known)
        if answer.error is not None and not answer.goes_beyond(start_byte):
            raise answer.error.with_traceback(None)  # of which other threads' parts grew
        if answer.data is None:
            raise MissingInputError(f"there is no object {url}")
        return answer.data[start_byte:]

    def _ask(self, bucket: AbstractBucket, key: str, *, known: bytes) -> _Answer:
        url = bucket.url_of(key)
        answer: _Answer | None = None
        try:
            answer = self._ask_bucket(bucket, key, known=known)
            return answer
        finally:
            with self._changed:
                self._being_read.discard(url)
                if answer is not None:
                    self._keep(url, answer)
                self._changed.notify_all()

    def _ask_bucket(self, bucket: AbstractBucket, key: str, *, known: bytes) -> _Answer:
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
        return _Answer(data=data, error=error, fresh_until_s=ended_s + (ended_s - began_s))

    def _keep(self, url: str, answer: _Answer) -> None:
        earlier = self._answers.pop(url, None)
        self._num_bytes += answer.size_bytes - (0 if earlier is None else earlier.size_bytes)
        self._answers[url] = answer
        while self._num_bytes > self._max_bytes:
            _, oldest = self._answers.popitem(last=False)
            self._num_bytes -= oldest.size_bytes
