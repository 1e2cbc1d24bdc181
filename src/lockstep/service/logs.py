"""Reading jobs' logs from the bucket, by a cursor that makes every line come exactly once."""

from __future__ import annotations

import base64
import bisect
import heapq
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, final

from lockstep.errors import InvalidInputError
from lockstep.jobs import TERMINAL
from lockstep.jobs.orders import GANG_ORDER
from lockstep.service.store import JobRecord
from lockstep.storage import open_bucket

LOST_AFTER_S: Final = 20.0
"""How long after a job's end lines may still arrive in the bucket before they are reported as missing."""


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
class Cursor:
    """How far a reader is: the number of the next line of each replica."""

    def __init__(self, positions: Mapping[str, int]) -> None:
        self.positions = dict(positions)

    @classmethod
    def decode(cls, text: str) -> Cursor:
        """Reads a cursor that `encode` wrote; an empty text is the beginning.

        Raises:
            InvalidInputError: it is not a cursor.
        """
        if not text:
            return cls({})
        try:
            positions = json.loads(base64.urlsafe_b64decode(text.encode()))
            if not all(isinstance(seq, int) and seq >= 0 for seq in positions.values()):
                raise ValueError
        except (ValueError, AttributeError):
            raise InvalidInputError("cursor is not one that this service gave", received=text) from None
        return cls(positions)

    def encode(self) -> str:
        """Returns the cursor as text that fits a URL."""
        return base64.urlsafe_b64encode(json.dumps(self.positions, sort_keys=True).encode()).decode()


def read_log(job: JobRecord, *, cursor: Cursor, size: int, now_s: float) -> LogPage:
    """Returns the lines after a cursor.

    Args:
        job: the job.
        cursor: how far the reader is.
        size: how many lines at the most.
        now_s: seconds since 1970 UTC.

    Raises:
        StorageError: the bucket cannot be read.
    """
    if job.gang_order is None:
        return LogPage(entries=(), cursor=cursor.encode(), complete=job.state in TERMINAL)
    order = GANG_ORDER.validate_python(job.gang_order)
    streams = [
        _lines(replica.name, replica.log_url, first_seq=cursor.positions.get(replica.name, 0))
        for replica in order.replicas
    ]
    entries: list[Mapping[str, Any]] = []
    positions = dict(cursor.positions)
    exhausted = True
    for entry in heapq.merge(*streams, key=lambda entry: entry["time_s"]):
        if len(entries) == size:
            exhausted = False
            break
        entries.append(entry)
        positions[entry["replica"]] = entry["seq"] + 1
    expected = {replica["name"]: replica["numLogLines"] for replica in job.replicas}
    num_missing = sum(max(0, (number or 0) - positions.get(name, 0)) for name, number in expected.items())
    over = job.state in TERMINAL and exhausted
    given_up = now_s - (job.end_time_s or now_s) > LOST_AFTER_S
    unknown = any(number is None for number in expected.values())
    complete = over and (given_up or (num_missing == 0 and not unknown))
    return LogPage(
        entries=tuple(entries),
        cursor=Cursor(positions).encode(),
        complete=complete,
        num_missing=num_missing if complete else 0,
    )


def _lines(replica: str, url: str, *, first_seq: int) -> Iterator[dict[str, Any]]:
    """Yields a replica's lines from a number on, as far as they are there without a gap."""
    bucket = open_bucket(url)
    keys = [item.key for item in bucket.list()]
    starts = [int(key.partition(".")[0]) for key in keys]
    expected = first_seq
    for index in range(max(0, bisect.bisect_right(starts, first_seq) - 1), len(keys)):
        if starts[index] > expected:  # a segment before this one is not there yet
            return
        for line in bucket.read(keys[index]).splitlines():
            entry = json.loads(line)
            if entry["seq"] == expected:
                expected += 1
                yield {"replica": replica, **entry}
