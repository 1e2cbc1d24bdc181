"""Days and months (UTC) of times, and intervals cut at midnight."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from lockstep.jobs.billing.bills import ReplicaUsage
from lockstep.jobs.billing.node_costs import NodeSlice, microseconds
from lockstep.jobs.parsing.fields import FOREVER_S


def day_name(time_s: float) -> str:
    """Returns the day of a time, such as ``2026-11-22``. Times are in seconds since 1970 UTC."""
    return _day(time_s).strftime("%Y-%m-%d")


def day_start_s(time_s: float) -> float:
    """Returns the start of the day of a time, in seconds since 1970 UTC."""
    return _day(time_s).timestamp()


def next_day_s(time_s: float) -> float:
    """Returns the start of the day after a time, in seconds since 1970 UTC."""
    return (_day(time_s) + timedelta(days=1)).timestamp()


def month_start_s(time_s: float) -> float:
    """Returns the start of the month of a time, in seconds since 1970 UTC."""
    return _day(time_s).replace(day=1).timestamp()


def next_month_s(time_s: float) -> float:
    """Returns the start of the month after a time, in seconds since 1970 UTC."""
    return (_day(time_s).replace(day=1) + timedelta(days=32)).replace(day=1).timestamp()


def cut_usage(
    usage: ReplicaUsage, *, since_s: float = 0.0, until_s: float = FOREVER_S, by_day: bool
) -> Iterator[ReplicaUsage]:
    """Yields the part of a usage that lies in an interval.

    Args:
        usage: the usage.
        since_s: the start of the interval, in seconds since 1970 UTC.
        until_s: its end.
        by_day: whether to cut the part at each midnight (UTC).
    """
    start_s, last_s = max(usage.start_time_s, since_s), min(usage.end_time_s, until_s)
    while start_s < last_s:
        end_s = min(last_s, next_day_s(start_s)) if by_day else last_s
        is_whole = (start_s, end_s) == (usage.start_time_s, usage.end_time_s)
        yield usage if is_whole else replace(usage, start_time_s=start_s, end_time_s=end_s)
        start_s = end_s


def cut_slice_by_day(piece: NodeSlice) -> Iterator[NodeSlice]:
    """Yields a slice of a node's time, cut at each midnight (UTC)."""
    start_us = piece.start_us
    while start_us < piece.end_us:
        end_us = min(piece.end_us, microseconds(next_day_s(start_us / 10**6)))
        yield replace(piece, start_us=start_us, end_us=end_us)
        start_us = end_us


def _day(time_s: float) -> datetime:
    return datetime.fromtimestamp(time_s, tz=UTC).replace(hour=0, minute=0, second=0, microsecond=0)
