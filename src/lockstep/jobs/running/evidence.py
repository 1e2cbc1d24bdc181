"""When something ended that nobody recorded: between the last sign of it and the first moment that it was known gone.

For example: a runner reported at 10:00:04, the last line of its log is of 10:00:05, the engine died after that, and a
service looked again at 08:00 the next day. The program ended between 10:00:05 and 08:00; its job is billed to 10:00:05.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Final, final

SILENT_S: Final = 60.0
"""A replica that was heard of within so many seconds counts as running now."""


@final
@dataclass(frozen=True, kw_only=True)
class ReplicaEvidence:
    """What is known of how long one replica ran. All times are seconds since 1970 UTC.

    Attributes:
        name: the replica's name.
        ended_time_s: its end as its runner recorded it; None where no runner did.
        signs: the last time of each kind of sign that its program ran, by words for the kind: "a log entry".
        gone_by_s: when it was known to have ended, though nobody knows since when; None where it was not until now.
    """

    name: str
    ended_time_s: float | None = None
    signs: Mapping[str, float] = field(default_factory=dict[str, float])
    gone_by_s: float | None = None


@final
@dataclass(frozen=True, kw_only=True)
class EndBounds:
    """When something ended.

    Attributes:
        earliest_s: it still was there then; it is billed up to here. Seconds since 1970 UTC.
        latest_s: it was gone by then; the same time where its end was recorded.
        sign: what shows that it was there, in words; "" where its end was recorded.
    """

    earliest_s: float
    latest_s: float
    sign: str = ""

    @property
    def is_known(self) -> bool:
        """Whether the end was recorded."""
        return not self.sign

    def describe(self) -> str:
        """Says it in words; "" where the end was recorded."""
        if self.is_known:
            return ""
        earliest, latest = (_clock_time(time_s) for time_s in (self.earliest_s, self.latest_s))
        return f"it ended between {earliest} ({self.sign}) and {latest}, and is billed up to the first"


def bound_end(replicas: Sequence[ReplicaEvidence], *, started_s: float, now_s: float) -> EndBounds:
    """Returns when a gang ended: with the last of its replicas.

    Args:
        replicas: what is known of each; one of which nothing is known does not count.
        started_s: when the gang had started, seconds since 1970 UTC.
        now_s: the time now; what is said of later times is taken for a clock that is ahead.
    """
    found = [each for each in map(partial(_bounds, now_s=now_s), replicas) if each is not None]
    if not found:
        gone_by_s = [now_s if replica.gone_by_s is None else replica.gone_by_s for replica in replicas]
        found = [EndBounds(earliest_s=started_s, latest_s=max(gone_by_s, default=now_s), sign="its start")]
    last = max(found, key=lambda each: each.earliest_s)
    known_s = max(now_s, started_s)
    earliest_s = min(max(last.earliest_s, started_s), known_s)
    latest_s = min(max(each.latest_s for each in found), known_s)
    is_known = latest_s <= earliest_s
    return EndBounds(earliest_s=earliest_s, latest_s=max(earliest_s, latest_s), sign="" if is_known else last.sign)


def _bounds(replica: ReplicaEvidence, *, now_s: float) -> EndBounds | None:
    """Returns when one replica ended; None where nothing is known of it."""
    if replica.ended_time_s is not None:
        time_s = replica.ended_time_s
        return EndBounds(earliest_s=time_s, latest_s=time_s, sign=f"the end of {replica.name}")
    if not replica.signs:
        return None
    kind, time_s = max(replica.signs.items(), key=lambda each: each[1])
    gone_by_s = now_s if replica.gone_by_s is None else replica.gone_by_s
    return EndBounds(earliest_s=time_s, latest_s=max(time_s, gone_by_s), sign=f"{kind} of {replica.name}")


def present_end_s(signs: Sequence[float], *, now_s: float) -> float:
    """Returns up to when something counts that nobody saw end: now, or its last sign where that is long ago.

    Args:
        signs: when it was heard of, seconds since 1970 UTC; it counts until now where none is known.
        now_s: the time now.
    """
    last_s = max(signs, default=now_s)
    return now_s if now_s - last_s <= SILENT_S else last_s


def _clock_time(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, tz=UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
