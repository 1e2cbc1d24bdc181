"""Determines when something ended whose end nobody recorded, from the last sign of it and the time it was known gone.

For example: A runner reported at 10:00:04, the last line of its log is from 10:00:05, then the engine died, and a
    service checked again at 08:00 the next day. The program ended between 10:00:05 and 08:00, and its job is billed
    until 10:00:05.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Final, final

SILENT_S: Final = 60.0
"""A replica whose last sign is at most this many seconds old counts as running."""


@final
@dataclass(frozen=True, kw_only=True)
class ReplicaEvidence:
    """The evidence of how long one replica ran. All times are in seconds since 1970 UTC.

    Attributes:
        name: the replica's name.
        ended_time_s: the end as the replica's runner recorded it; None if no runner recorded one.
        signs: the time of the last sign of each kind that the program ran, by a description of the kind: "a log entry".
        known_gone_time_s: the time when the replica was known to have ended at some earlier time; None if that is only
            known now.
    """

    name: str
    ended_time_s: float | None = None
    signs: Mapping[str, float] = field(default_factory=dict[str, float])
    known_gone_time_s: float | None = None


@final
@dataclass(frozen=True, kw_only=True)
class EndBounds:
    """The period in which something ended.

    Attributes:
        earliest_s: the last time when it was known to exist, in seconds since 1970 UTC. It is billed until then.
        latest_s: the first time when it was known to be gone; equal to `earliest_s` if its end was recorded.
        sign: a description of the sign that it existed at `earliest_s`; "" if its end was recorded.
    """

    earliest_s: float
    latest_s: float
    sign: str = ""

    @property
    def is_known(self) -> bool:
        """Whether the end was recorded."""
        return not self.sign

    def describe(self) -> str:
        """Describes the period; "" if the end was recorded."""
        if self.is_known:
            return ""
        earliest, latest = (_clock_time(time_s) for time_s in (self.earliest_s, self.latest_s))
        return f"it ended between {earliest} ({self.sign}) and {latest}, and is billed until the first time"


def bound_end(replicas: Sequence[ReplicaEvidence], *, started_s: float, now_s: float) -> EndBounds:
    """Returns the period in which a gang ended, which is when the last of its replicas ended.

    Args:
        replicas: the evidence of each replica; a replica without any evidence is ignored.
        started_s: the time when the gang started, in seconds since 1970 UTC.
        now_s: the current time. A later time in the evidence is attributed to a clock that is ahead.
    """
    found = [each for each in map(partial(_bounds, now_s=now_s), replicas) if each is not None]
    if not found:
        times_s = [now_s if each.known_gone_time_s is None else each.known_gone_time_s for each in replicas]
        found = [EndBounds(earliest_s=started_s, latest_s=max(times_s, default=now_s), sign="its start")]
    last = max(found, key=lambda each: each.earliest_s)
    known_s = max(now_s, started_s)
    earliest_s = min(max(last.earliest_s, started_s), known_s)
    latest_s = min(max(each.latest_s for each in found), known_s)
    is_known = latest_s <= earliest_s
    return EndBounds(earliest_s=earliest_s, latest_s=max(earliest_s, latest_s), sign="" if is_known else last.sign)


def _bounds(replica: ReplicaEvidence, *, now_s: float) -> EndBounds | None:
    """Returns the period in which one replica ended; None if there is no evidence of it."""
    if replica.ended_time_s is not None:
        time_s = replica.ended_time_s
        return EndBounds(earliest_s=time_s, latest_s=time_s, sign=f"the end of {replica.name}")
    if not replica.signs:
        return None
    kind, time_s = max(replica.signs.items(), key=lambda each: each[1])
    gone_time_s = now_s if replica.known_gone_time_s is None else replica.known_gone_time_s
    return EndBounds(earliest_s=time_s, latest_s=max(time_s, gone_time_s), sign=f"{kind} of {replica.name}")


def billable_until_s(signs: Sequence[float], *, now_s: float) -> float:
    """Returns until when something counts whose end nobody saw: until now, or its last sign if that is too old.

    Args:
        signs: the times of its signs, in seconds since 1970 UTC; without any, it counts until now.
        now_s: the current time.
    """
    last_s = max(signs, default=now_s)
    return now_s if now_s - last_s <= SILENT_S else last_s


def _clock_time(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, tz=UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
