"""Reads jobs' logs from the end, towards the beginning, or around an entry; forwards, `read_log` goes on.

The names of a replica's segments are listed once, and kept. Then only the segments of a page are read.
"""

from __future__ import annotations

import base64
import heapq
import json
import re
import threading
import time
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, final

from lockstep.errors import InvalidInputError, NotFoundError
from lockstep.jobs.logs import LogEntry
from lockstep.service.control.job_inputs import order_of
from lockstep.service.store import JobRecord
from lockstep.service.telemetry.logs import (
    SCAN_ENTRIES,
    SCAN_S,
    Cursor,
    Position,
    Segments,
    open_segments,
)
from lockstep.service.telemetry.segments import SegmentCache
from lockstep.storage import AbstractBucket

MAX_REPLICAS: Final = 20
"""The maximum number of replicas whose logs are merged. Each costs a listing and some objects."""
FRESH_S: Final = 5.0
"""How long the listing of a log is used for finding its end, in seconds."""
MAX_LISTED: Final = 2_000_000
"""The size of the cache of listings, in segments of 8 bytes."""
_KEY: Final = re.compile(r"(\d{12,})\.jsonl")
_INSERT_ID: Final = re.compile(r"(\d{3,9})\.([A-Za-z0-9-]{1,200})\.(\d{12,15})")


@final
class SegmentListings:
    """Lists the segments of logs, and keeps the listings: segments are only ever added at the end. Thread-safe.

    Args:
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._listed: OrderedDict[str, tuple[float, array[int]]] = OrderedDict()
        self._num_listed = 0

    def firsts(self, bucket: AbstractBucket, *, until_seq: int | None) -> Sequence[int]:
        """Returns the numbers of the segments' first entries, ascending.

        Args:
            bucket: the bucket of a log.
            until_seq: the number of an entry: the segments up to it are needed; None for all that there are now.

        Raises:
            StorageError: If the bucket cannot be listed.
        """
        with self._lock:
            known = self._listed.get(bucket.url)
        if known is not None:
            listed_s, firsts = known
            is_known = until_seq is not None and len(firsts) > 0 and firsts[-1] >= until_seq
            if is_known or self._clock() - listed_s < FRESH_S:
                return firsts
        listed_s = self._clock()
        found = (_KEY.fullmatch(item.key) for item in bucket.list())
        firsts = array("q", sorted(int(match[1]) for match in found if match is not None))
        with self._lock:
            earlier = self._listed.pop(bucket.url, None)
            self._listed[bucket.url] = listed_s, firsts
            self._num_listed += len(firsts) - (0 if earlier is None else len(earlier[1]))
            while self._num_listed > MAX_LISTED and len(self._listed) > 1:
                self._num_listed -= len(self._listed.popitem(last=False)[1][1])
        return firsts


@final
@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Where a reader has got to on the way to the beginning of a log.

    Attributes:
        attempt: the number of the attempt that is read. Those before it follow.
        seqs: by replica, the number of the entry before which its log is read on; those that are missing, from the end.
    """

    attempt: int
    seqs: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def decode(cls, text: str) -> Bounds:
        """Parses what `encode` wrote.

        Raises:
            InvalidInputError: If the text is something else.
        """
        try:
            attempt, seqs = json.loads(base64.urlsafe_b64decode(text.encode()))
            numbers = [attempt, *seqs.values()]
            if not all(type(number) is int and 0 <= number < 2**53 for number in numbers):
                raise ValueError(text)
            return cls(attempt=attempt, seqs=seqs)
        except (ValueError, TypeError, AttributeError, RecursionError):
            raise InvalidInputError("before was not issued by this service", received=text) from None

    def encode(self) -> str:
        """Returns the bounds as text that is safe in a URL."""
        return base64.urlsafe_b64encode(json.dumps([self.attempt, dict(self.seqs)]).encode()).decode()


@final
@dataclass(frozen=True, kw_only=True)
class EarlierPage:
    """A page on the way to the beginning of a log.

    Attributes:
        entries: the entries, attempt by attempt, and by time within an attempt.
        bounds: where the page before this one ends; None if this is the first one. A page with a filter may be empty
            although there are others before it.
    """

    entries: tuple[LogEntry, ...]
    bounds: Bounds | None


def choose_replicas(job: JobRecord, *, asked: Sequence[str], at: str = "", bounds: Bounds | None = None) -> list[str]:
    """Returns the names of the replicas whose logs are read, in their order: those asked for, or all.

    Of a job with more than `MAX_REPLICAS`, it is the replica of the entry, those of the bounds, or else the first ones.

    Args:
        job: the job.
        asked: the names that were asked for; at most `MAX_REPLICAS`.
        at: the id of the entry that is read around; anything else if none is.
        bounds: where the reader has got to; None if it begins.

    Raises:
        InvalidInputError: If the job has no such replica.
    """
    order = order_of(job)
    names = [] if order is None else [replica.name for replica in order.replicas]
    there = frozenset(names)
    unknown = next((name for name in asked if name not in there), None)
    if unknown is not None and names:
        raise InvalidInputError("replica", received=unknown, allowed=names[:MAX_REPLICAS])
    if not asked and len(names) > MAX_REPLICAS:
        match = _INSERT_ID.fullmatch(at)
        asked = [match[2]] if match is not None else [] if bounds is None else list(bounds.seqs)
    chosen = frozenset(asked)
    return [name for name in names if not chosen or name in chosen][:MAX_REPLICAS]


@final
@dataclass(frozen=True, kw_only=True)
class LogHistory:
    """Reads the log of a job in both directions.

    Attributes:
        job: the job.
        replicas: the names of the replicas, as `choose_replicas` returns them.
        segments: the cache through which segments are read.
        listings: the cache of listings.
        clock: a monotonic clock, in seconds.
    """

    job: JobRecord
    replicas: Sequence[str]
    segments: SegmentCache
    listings: SegmentListings
    clock: Callable[[], float] = time.monotonic

    def end(self) -> tuple[Bounds, Cursor]:
        """Returns the current end of the log: for reading towards the beginning, and for `read_log`.

        Raises:
            StorageError: If the bucket cannot be read.
            CorruptDataError: If the objects are not a log.
        """
        positions = self._ends(self.job.attempt)
        cursor = Cursor({**self._late(self.job.attempt), self.job.attempt: positions}, attempt=self.job.attempt)
        return Bounds(attempt=self.job.attempt, seqs={name: at.next_seq for name, at in positions.items()}), cursor

    def around(self, insert_id: str) -> tuple[Bounds, Cursor]:
        """Returns the place of an entry: the bounds for what is before it, and the cursor for the entry and the rest.

        The logs of the other replicas are entered at the same time.

        Args:
            insert_id: the id of the entry.

        Raises:
            InvalidInputError: If the text is no id.
            NotFoundError: If there is no such entry.
            StorageError: If the bucket cannot be read.
            CorruptDataError: If the objects are not a log.
        """
        match = _INSERT_ID.fullmatch(insert_id)
        if match is None:
            raise InvalidInputError("at", received=insert_id, allowed='"end", or the insertId of an entry')
        attempt, replica, seq = int(match[1]), match[2], int(match[3])
        missing = NotFoundError(f"job {self.job.job_id} has no log entry {insert_id}")
        if attempt > self.job.attempt or replica not in self.replicas:
            raise missing
        place, time_s = self._place_of(replica, attempt, seq)
        if place is None:
            raise missing
        positions = {
            name: place if name == replica else self._position_at(name, attempt, time_s=time_s)
            for name in self.replicas
        }
        cursor = Cursor({**self._late(attempt), attempt: positions}, attempt=attempt)
        return Bounds(attempt=attempt, seqs={name: at.next_seq for name, at in positions.items()}), cursor

    def before(self, bounds: Bounds, *, size: int, holds: Callable[[LogEntry], bool]) -> EarlierPage:
        """Returns the entries before a place. It reads as much as `read_log` at most.

        Args:
            bounds: the place.
            size: the maximum number of entries.
            holds: the filter.

        Raises:
            StorageError: If the bucket cannot be read.
            CorruptDataError: If the objects are not a log.
        """
        found: list[LogEntry] = []
        deadline_s = self.clock() + SCAN_S
        num_read = 0
        for attempt in range(min(bounds.attempt, self.job.attempt), -1, -1):
            seqs = dict(bounds.seqs) if attempt == bounds.attempt else {}
            streams = [self._backward(name, attempt, seqs=seqs) for name in self.replicas]
            for entry in heapq.merge(*streams, key=lambda entry: -entry.stored.time_s):
                is_late = num_read > 0 and self.clock() > deadline_s
                if len(found) == size or num_read == SCAN_ENTRIES or is_late:
                    return EarlierPage(entries=tuple(reversed(found)), bounds=Bounds(attempt=attempt, seqs=seqs))
                num_read += 1
                seqs[entry.replica] = entry.stored.seq
                if holds(entry):
                    found.append(entry)
        return EarlierPage(entries=tuple(reversed(found)), bounds=None)

    def _log(self, name: str, attempt: int) -> Segments:
        return open_segments(self.job, replica=name, attempt=attempt, cache=self.segments)

    def _backward(self, name: str, attempt: int, *, seqs: dict[str, int]) -> Iterator[LogEntry]:
        """Yields a replica's entries, the last one first; notes in `seqs` where it begins, if that is not there."""
        log = self._log(name, attempt)
        bound = seqs.get(name)
        firsts = self.listings.firsts(log.bucket, until_seq=bound)
        last = len(firsts) if bound is None else bisect_left(firsts, bound)
        for first in reversed(firsts[:last]):
            entries = [entry for entry, _ in log.read_segment(Position(segment_seq=first, next_seq=first))]
            if bound is None and entries:
                bound = seqs[name] = entries[-1].stored.seq + 1
            yield from (entry for entry in reversed(entries) if bound is None or entry.stored.seq < bound)

    def _late(self, attempt: int) -> dict[int, dict[str, Position]]:
        """Returns the ends of the logs of the attempt before one, which `read_log` also reads on."""
        return {} if attempt == 0 else {attempt - 1: self._ends(attempt - 1)}

    def _ends(self, attempt: int) -> dict[str, Position]:
        found: dict[str, Position] = {}
        for name in self.replicas:
            log = self._log(name, attempt)
            firsts = self.listings.firsts(log.bucket, until_seq=None)
            if len(firsts):
                found[name] = _end_of(log, firsts[-1])
        return found

    def _place_of(self, replica: str, attempt: int, seq: int) -> tuple[Position | None, float]:
        """Returns the position before an entry, and its time; None if there is no such entry."""
        log = self._log(replica, attempt)
        firsts = self.listings.firsts(log.bucket, until_seq=seq)
        number = bisect_right(firsts, seq) - 1
        if number >= 0:
            before = Position(segment_seq=firsts[number], next_seq=firsts[number])
            for entry, after in log.read_segment(before):
                if entry.stored.seq == seq:
                    return before, entry.stored.time_s
                before = after
        return None, 0.0

    def _position_at(self, name: str, attempt: int, *, time_s: float) -> Position:
        """Returns the position before a replica's first entry that is not before a time."""
        log = self._log(name, attempt)
        firsts = self.listings.firsts(log.bucket, until_seq=None)
        if not len(firsts):
            return Position()
        # The last segment that begins before the time has the position in it, or at its end.
        number = bisect_left(range(len(firsts)), time_s, key=lambda number: _begin_of(log, firsts[number])) - 1
        first = firsts[max(0, number)]
        before = Position(segment_seq=first, next_seq=first)
        for entry, after in log.read_segment(before):
            if entry.stored.time_s >= time_s:
                return before
            before = after
        return before


def _begin_of(log: Segments, first: int) -> float:
    """Returns the time of a segment's first entry; that of a segment that is gone is long ago."""
    for entry, _ in log.read_segment(Position(segment_seq=first, next_seq=first)):
        return entry.stored.time_s
    return float("-inf")


def _end_of(log: Segments, first: int) -> Position:
    end = Position(segment_seq=first, next_seq=first)
    for _, after in log.read_segment(end):
        end = after
    return end
