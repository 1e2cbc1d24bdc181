"""Reading jobs' logs from the bucket, by a cursor that makes every line come exactly once."""

from __future__ import annotations

import base64
import heapq
import json
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, final

from lockstep.errors import CorruptDataError, InvalidInputError, MissingInputError
from lockstep.jobs import TERMINAL
from lockstep.jobs.orders import GANG_ORDER
from lockstep.runner.logs import segment_key
from lockstep.service.store import JobRecord
from lockstep.storage import QUICK_POLICY, AbstractBucket, open_bucket

LOST_AFTER_S: Final = 20.0
"""How long after a job's end lines may still arrive in the bucket before they are reported as missing."""

_POSITION_LIMIT: Final = 2**53


@final
@dataclass(frozen=True, kw_only=True)
class LogPage:
    """Some lines of a job's log.

    Attributes:
        entries: the lines in the order of their times, each ``{"replica", "seq", "time_s", "stream", "text"}``.
        cursor: what to ask for the lines after these.
        complete: whether the job is over and these were the last.
        num_missing: lines that their replicas wrote and that never reached the bucket; known when complete.
    """

    entries: tuple[Mapping[str, Any], ...]
    cursor: str
    complete: bool
    num_missing: int = 0


@final
@dataclass(frozen=True, kw_only=True)
class Position:
    """How far a reader is in one replica's log.

    Attributes:
        segment_seq: the number that the segment read last starts with.
        offset_bytes: how much of that segment is read.
        next_seq: the number of the next line.
    """

    segment_seq: int = 0
    offset_bytes: int = 0
    next_seq: int = 0

    def next_segment(self) -> Position:
        """Returns the beginning of the segment that the next line starts, if it is not in this one."""
        return Position(segment_seq=self.next_seq, next_seq=self.next_seq)


_Line = tuple[Mapping[str, Any], Position]
"""A line, and the position after it."""


@final
class Cursor:
    """How far a reader is: its position in the log of each replica.

    Args:
        positions: by the replicas' names; one that is not named is at the beginning.
        attempt: which start of the gang they belong to: each has logs of its own.
    """

    def __init__(self, positions: Mapping[str, Position], *, attempt: int = 0) -> None:
        self.positions = dict(positions)
        self.attempt = attempt

    @classmethod
    def decode(cls, text: str) -> Cursor:
        """Reads a cursor that `encode` wrote; an empty text is the beginning.

        Raises:
            InvalidInputError: it is not a cursor.
        """
        if not text:
            return cls({})
        try:
            attempt, replicas = json.loads(base64.urlsafe_b64decode(text.encode()))
            positions = {name: _position(numbers) for name, numbers in replicas.items()}
            return cls(positions, attempt=_number(attempt))
        except (ValueError, TypeError, AttributeError):
            raise InvalidInputError("cursor is not one that this service gave", received=text) from None

    def encode(self) -> str:
        """Returns the cursor as text that fits a URL."""
        replicas = {
            name: [position.segment_seq, position.offset_bytes, position.next_seq]
            for name, position in sorted(self.positions.items())
        }
        return base64.urlsafe_b64encode(json.dumps([self.attempt, replicas]).encode()).decode()


def _position(numbers: Any) -> Position:
    segment_seq, offset_bytes, next_seq = map(_number, numbers)
    return Position(segment_seq=segment_seq, offset_bytes=offset_bytes, next_seq=next_seq)


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _POSITION_LIMIT:
        raise ValueError(value)
    return value


def read_log(job: JobRecord, *, cursor: Cursor, size: int, now_s: float) -> LogPage:
    """Returns the lines after a cursor.

    Args:
        job: the job.
        cursor: how far the reader is.
        size: how many lines at the most.
        now_s: seconds since 1970 UTC.

    Raises:
        StorageError: the bucket cannot be read.
        CorruptDataError: what is there is no log, or the cursor does not fit it.
    """
    if job.gang_order is None:
        return LogPage(entries=(), cursor=cursor.encode(), complete=job.state in TERMINAL)
    order = GANG_ORDER.validate_python(job.gang_order)
    positions = dict(cursor.positions) if cursor.attempt == job.attempt else {}
    streams = [
        _lines(replica.name, replica.log_url, position=positions.get(replica.name, Position()))
        for replica in order.replicas
    ]
    entries: list[Mapping[str, Any]] = []
    exhausted = True
    for entry, position in heapq.merge(*streams, key=lambda line: line[0]["time_s"]):
        if len(entries) == size:
            exhausted = False
            break
        entries.append(entry)
        positions[entry["replica"]] = position
    expected = {replica["name"]: replica["numLogLines"] for replica in job.replicas}
    num_missing = sum(
        max(0, (number or 0) - positions.get(name, Position()).next_seq) for name, number in expected.items()
    )
    over = job.state in TERMINAL and exhausted
    given_up = now_s - (job.end_time_s or now_s) > LOST_AFTER_S
    unknown = any(number is None for number in expected.values())
    complete = over and (given_up or (num_missing == 0 and not unknown))
    return LogPage(
        entries=tuple(entries),
        cursor=Cursor(positions, attempt=job.attempt).encode(),
        complete=complete,
        num_missing=num_missing if complete else 0,
    )


def _lines(replica: str, url: str, *, position: Position) -> Iterator[_Line]:
    """Yields a replica's lines from a position on, as far as they are there without a gap.

    The numbers have no gaps, so the next segment's name is known, and nothing has to be listed.
    """
    bucket = open_bucket(url, policy=QUICK_POLICY)
    if position.offset_bytes:  # a segment whose writer was in doubt is written again, with more lines at its end
        position = (yield from _segment(replica, bucket, position)).next_segment()
    while (after := (yield from _segment(replica, bucket, position))) != position:
        position = after.next_segment()


def _segment(replica: str, bucket: AbstractBucket, position: Position) -> Generator[_Line, None, Position]:
    """Yields the lines of one segment that stand after a position; returns the position after them."""
    key = segment_key(position.segment_seq)
    try:
        data = bucket.read(key, start_byte=position.offset_bytes)
    except MissingInputError:  # it is not there yet
        return position
    for line in data.splitlines(keepends=True):
        entry = _entry(line)
        if entry.get("seq") != position.next_seq:
            raise CorruptDataError(
                f"{bucket.url_of(key)} is no log that has line {position.next_seq} at byte {position.offset_bytes}"
            )
        position = Position(
            segment_seq=position.segment_seq,
            offset_bytes=position.offset_bytes + len(line),
            next_seq=position.next_seq + 1,
        )
        yield {**entry, "replica": replica}, position
    return position


def _entry(line: bytes) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError:
        return {}
    return entry if isinstance(entry, dict) else {}
