"""What jobs keep in the bucket costs: their sizes, as they were measured from time to time, over time.

A size holds until the next one that was measured. A month is 730 hours, as clouds count it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Final, final

from lockstep.jobs.billing.days import next_day_s
from lockstep.jobs.billing.node_costs import microseconds

MONTH_HOURS: Final = 730
GIB_BYTES: Final = 2**30

_MICROSECONDS_PER_S: Final = 10**6


@final
@dataclass(frozen=True, kw_only=True)
class StoredSpan:
    """How much a job kept in the bucket for a while.

    Attributes:
        project: its project.
        job: its name.
        labels: its labels.
        size_bytes: how much.
        start_s: from when on, seconds since 1970 UTC.
        end_s: until when.
    """

    project: str
    job: str
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    size_bytes: int
    start_s: float
    end_s: float

    @property
    def gib_months(self) -> Fraction:
        """How much it is, in GiB times months."""
        hours = Fraction(microseconds(self.end_s) - microseconds(self.start_s), 3600 * _MICROSECONDS_PER_S)
        return Fraction(self.size_bytes, GIB_BYTES) * hours / MONTH_HOURS

    def cut(self, *, since_s: float, until_s: float, by_day: bool) -> Iterator[StoredSpan]:
        """Yields what of it lies in a while.

        Args:
            since_s: the beginning of the while, seconds since 1970 UTC.
            until_s: its end.
            by_day: whether it is cut at each midnight (UTC).
        """
        start_s, last_s = max(self.start_s, since_s), min(self.end_s, until_s)
        while start_s < last_s:
            end_s = min(last_s, next_day_s(start_s)) if by_day else last_s
            yield replace(self, start_s=start_s, end_s=end_s)
            start_s = end_s
