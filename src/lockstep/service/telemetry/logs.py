"""Reads jobs' logs from the bucket, with a cursor by which a reader receives each entry exactly once."""

from __future__ import annotations

import base64
import heapq
import json
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from lockstep.errors import CorruptDataError, InvalidInputError, MissingInputError
from lockstep.jobs.logs import LogEntry, decode_entry
from lockstep.jobs.running.states import TERMINAL
from lockstep.runner.logs import segment_key
from lockstep.service.control.job_inputs import order_of
from lockstep.service.control.job_urls import log_url
from lockstep.service.store import JobRecord
from lockstep.service.telemetry.segments import SegmentCache
from lockstep.storage import QUICK_POLICY, AbstractBucket, open_bucket

LOST_AFTER_S: Final = 20.0
"""How long after a job's end entries may still arrive in the bucket. Then they are reported as missing."""

SCAN_ENTRIES: Final = 20_000
"""The maximum number of entries that are read for one page."""

SCAN_S: Final = 0.5
"""The maximum time for reading one page."""

_POSITION_LIMIT: Final = 2**53


@final
@dataclass(frozen=True, kw_only=True)
class LogPage:
    """A page of a job's log.

    Attributes:
        entries: the entries, attempt by attempt, and by time within an attempt.
        cursor: the cursor for the entries after these.
        more: whether the page ended at a limit, not at the current end of the log. An empty page may have more after
            it if a filter is used.
        complete: whether the job is over and these were its last entries.
        num_missing: the number of entries that replicas wrote but that never reached the bucket; known if `complete`.
    """

    entries: tuple[LogEntry, ...]
    cursor: str
    more: bool = False
    complete: bool = False
    num_missing: int = 0


@final
@dataclass(frozen=True, kw_only=True)
class Position:
    """A reader's position in one replica's log.

    Attributes:
        segment_seq: the number of the first entry of the segment that was read last.
        offset_bytes: the number of bytes of that segment that have been read.
        next_seq: the number of the next entry.
    """

    segment_seq: int = 0
    offset_bytes: int = 0
    next_seq: int = 0

    def next_segment(self) -> Position:
        """Returns the beginning of the next segment, if the next entry is not in this segment."""
        return Position(segment_seq=self.next_seq, next_seq=self.next_seq)


_Read = tuple[LogEntry, Position]
"""An entry, and the position after it."""

_Positions = dict[int, dict[str, Position]]
"""Positions by attempt and replica name. A missing position is the beginning."""


@final
class Cursor:
    """A reader's positions in the logs of all replicas.

    Attempts are read one after another. Of the earlier attempts, only the previous one is read again, because its
    entries may arrive late if the bucket was failing.

    Args:
        positions: the positions by attempt and replica name. A missing position is the beginning.
        attempt: the last attempt that something was read of.
    """

    def __init__(self, positions: Mapping[int, Mapping[str, Position]], *, attempt: int = 0) -> None:
        self.positions: _Positions = {number: dict(replicas) for number, replicas in positions.items()}
        self.attempt = attempt

    @classmethod
    def decode(cls, text: str) -> Cursor:
        """Parses a cursor that `encode` wrote. An empty text is the beginning.

        Raises:
            InvalidInputError: If the text is not a cursor.
        """
        if not text:
            return cls({})
        try:
            attempt, earlier, latest = json.loads(base64.urlsafe_b64decode(text.encode()))
            attempt = _number(attempt)
            positions = {
                number: {name: _position(numbers) for name, numbers in replicas.items()}
                for number, replicas in ((attempt - 1, earlier), (attempt, latest))
            }
            return cls(positions, attempt=attempt)
        except (ValueError, TypeError, AttributeError, RecursionError):
            raise InvalidInputError("cursor was not issued by this service", received=text) from None

    def encode(self) -> str:
        """Returns the cursor as text that is safe in a URL."""
        earlier, latest = (
            {
                name: [position.segment_seq, position.offset_bytes, position.next_seq]
                for name, position in sorted(self.positions.get(attempt, {}).items())
            }
            for attempt in (self.attempt - 1, self.attempt)
        )
        return base64.urlsafe_b64encode(json.dumps([self.attempt, earlier, latest]).encode()).decode()


def _position(numbers: Any) -> Position:
    segment_seq, offset_bytes, next_seq = map(_number, numbers)
    return Position(segment_seq=segment_seq, offset_bytes=offset_bytes, next_seq=next_seq)


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _POSITION_LIMIT:
        raise ValueError(value)
    return value


def read_log(
    job: JobRecord,
    *,
    cursor: Cursor,
    size: int,
    now_s: float,
    holds: Callable[[LogEntry], bool] = lambda _: True,
    replicas: Sequence[str] = (),
    segments: SegmentCache | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> LogPage:
    """Returns the entries after a cursor.

    At most `SCAN_ENTRIES` entries are read for a page, for at most `SCAN_S` seconds (but at least one entry), so a
    filter that matches nothing does not block the service.

    Args:
        job: the job.
        cursor: the reader's cursor.
        size: the maximum number of entries.
        now_s: the current time, in seconds since 1970 UTC.
        holds: the filter.
        replicas: the replicas whose entries are read, and at whose end the log is complete; all if empty.
        segments: the cache through which segments are read. If all readers share it, concurrent readers of a segment
            cause one read.
        clock: a monotonic clock, in seconds.

    Raises:
        StorageError: If the bucket cannot be read.
        CorruptDataError: If the objects are not a log, or the cursor does not fit them.
    """
    order = order_of(job)
    if order is None:
        return LogPage(entries=(), cursor=cursor.encode(), complete=job.state in TERMINAL)
    names = [replica.name for replica in order.replicas if not replicas or replica.name in replicas]
    positions: _Positions = {
        attempt: dict(cursor.positions.get(attempt, {}))
        for attempt in range(max(0, min(cursor.attempt, job.attempt) - 1), job.attempt + 1)
    }
    reached = min(cursor.attempt, job.attempt)
    entries: list[LogEntry] = []
    more = False
    deadline = clock() + SCAN_S
    for num_scanned, (entry, position) in enumerate(
        _entries(job, names, positions, segments=segments or SegmentCache())
    ):
        if len(entries) == size or num_scanned == SCAN_ENTRIES or (num_scanned and clock() > deadline):
            more = True
            break
        positions[entry.attempt][entry.replica] = position
        reached = max(reached, entry.attempt)
        if holds(entry):
            entries.append(entry)
    complete, num_missing = _completion(job, positions[job.attempt], names=names, now_s=now_s)
    complete = complete and not more
    return LogPage(
        entries=tuple(entries),
        cursor=Cursor(positions, attempt=reached).encode(),
        more=more,
        complete=complete,
        num_missing=num_missing if complete else 0,
    )


def _completion(
    job: JobRecord, positions: Mapping[str, Position], *, names: Sequence[str], now_s: float
) -> tuple[bool, int]:
    """Returns whether a reader at these positions has read the whole log, and how many entries are missing."""
    ends = {
        replica.status.name: replica.status.end for replica in job.replicas if replica.status.name in frozenset(names)
    }
    expected = {name: None if end is None else end.num_log_entries for name, end in ends.items()}
    num_missing = sum(
        max(0, (number or 0) - positions.get(name, Position()).next_seq) for name, number in expected.items()
    )
    given_up = now_s - (job.end_time_s or now_s) > LOST_AFTER_S
    unknown = any(number is None for number in expected.values())
    return job.state in TERMINAL and (given_up or (num_missing == 0 and not unknown)), num_missing


def _entries(
    job: JobRecord, replicas: Sequence[str], positions: _Positions, *, segments: SegmentCache
) -> Iterator[_Read]:
    for attempt, starts in sorted(positions.items()):
        streams = [
            _replica(job, name, attempt, position=starts.get(name, Position()), segments=segments) for name in replicas
        ]
        yield from heapq.merge(*streams, key=lambda read: read[0].stored.time_s)


def _replica(
    job: JobRecord, replica: str, attempt: int, *, position: Position, segments: SegmentCache
) -> Iterator[_Read]:
    """Yields a replica's entries from a position on, up to the first segment that is missing.

    Entry numbers have no gaps, so the name of the next segment is known, and no listing is needed.
    """
    read = open_segments(job, replica=replica, attempt=attempt, cache=segments)
    # The segment may have grown: a writer that is unsure whether a write succeeded writes it again, with more entries.
    if position.offset_bytes:
        position = (yield from read.read_segment(position)).next_segment()
    while (after := (yield from read.read_segment(position))) != position:
        position = after.next_segment()


def open_segments(job: JobRecord, *, replica: str, attempt: int, cache: SegmentCache) -> Segments:
    """Returns the log of one replica of one attempt. Nothing is read yet."""
    bucket = open_bucket(log_url(job, replica=replica, attempt=attempt), policy=QUICK_POLICY)
    return Segments(job=job, replica=replica, attempt=attempt, bucket=bucket, cache=cache)


@final
@dataclass(frozen=True, kw_only=True)
class Segments:
    """The segments of one replica's log of one attempt.

    Attributes:
        job: the job.
        replica: the name of the replica.
        attempt: the number of the attempt.
        bucket: the bucket of the segments.
        cache: the cache through which they are read.
    """

    job: JobRecord
    replica: str
    attempt: int
    bucket: AbstractBucket
    cache: SegmentCache

    def read_segment(self, position: Position) -> Generator[tuple[LogEntry, Position], None, Position]:
        """Yields the entries of one segment after a position, each with the position after it.

        Returns:
            The position after them all.

        Raises:
            StorageError: If the bucket cannot be read.
            CorruptDataError: If the segment is not a log, or the position does not fit it.
        """
        key = segment_key(position.segment_seq)
        try:
            data = self.cache.read(self.bucket, key, position.offset_bytes)
        except MissingInputError:  # it is not written yet
            return position
        for line in data.splitlines(keepends=True):
            stored = decode_entry(line)
            if stored is None or stored.seq != position.next_seq:
                raise CorruptDataError(
                    f"{self.bucket.url_of(key)} is not a log with entry {position.next_seq} "
                    f"at byte {position.offset_bytes}"
                )
            position = Position(
                segment_seq=position.segment_seq,
                offset_bytes=position.offset_bytes + len(line),
                next_seq=position.next_seq + 1,
            )
            yield (
                LogEntry(
                    project=self.job.project,
                    job=self.job.job_id,
                    replica=self.replica,
                    attempt=self.attempt,
                    stored=stored,
                ),
                position,
            )
        return position
