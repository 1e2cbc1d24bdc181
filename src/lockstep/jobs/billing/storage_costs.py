"""The cost of what jobs store in the bucket, from sizes that are measured periodically.

A measured size counts until the next measurement. A month is 730 hours, as clouds count it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Final, final

from lockstep.jobs.billing.days import next_day_s
from lockstep.jobs.billing.node_costs import microseconds
from lockstep.jobs.billing.served_models import ServedModel

MONTH_HOURS: Final = 730
GIB_BYTES: Final = 2**30

_MICROSECONDS_PER_S: Final = 10**6


@final
@dataclass(frozen=True, kw_only=True)
class StoredSpan:
    """A size that a job stored in the bucket for some time.

    Attributes:
        project: the project of the job.
        job: the name of the job.
        labels: the labels of the job.
        size_bytes: the size in bytes.
        start_s: the start of that time, in seconds since 1970 UTC.
        end_s: its end.
        served: the model that a batch prediction works for; None for other jobs.
    """

    project: str
    job: str
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    size_bytes: int
    start_s: float
    end_s: float
    served: ServedModel | None = None

    @property
    def gib_months(self) -> Fraction:
        """The size times the length, in GiB months."""
        hours = Fraction(microseconds(self.end_s) - microseconds(self.start_s), 3600 * _MICROSECONDS_PER_S)
        return Fraction(self.size_bytes, GIB_BYTES) * hours / MONTH_HOURS

    def cut(self, *, since_s: float, until_s: float, by_day: bool) -> Iterator[StoredSpan]:
        """Yields the part that lies in an interval.

        Args:
            since_s: the start of the interval, in seconds since 1970 UTC.
            until_s: its end.
            by_day: whether to cut the part at each midnight (UTC).
        """
        start_s, last_s = max(self.start_s, since_s), min(self.end_s, until_s)
        while start_s < last_s:
            end_s = min(last_s, next_day_s(start_s)) if by_day else last_s
            yield replace(self, start_s=start_s, end_s=end_s)
            start_s = end_s
