"""The part of a trial's record that other jobs do not have: its parameters, and what it has measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

from pydantic import TypeAdapter

from lockstep.jobs.tuning import Measurement


@final
@dataclass(frozen=True, kw_only=True)
class MeasuredPoint:
    """A value of the metric.

    Attributes:
        step: the step.
        value: the value; None if it is not finite.
        time_s: the time, in seconds since 1970 UTC.
    """

    step: int
    value: float | None
    time_s: float


@final
@dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """What makes a trial different from the other trials of its search, and what it has measured.

    Attributes:
        number: its number in the search, from 1.
        metric: the name of the metric.
        parameters: the values of its parameters, by name.
        points: the values of the metric that were read so far, thinned evenly; the last one is always there.
        run: the TensorBoard run that they are from; None if none was read.
        is_read: whether all of them were read, after the end of the trial.
    """

    number: int
    metric: str
    parameters: Mapping[str, int | float | str]
    points: tuple[MeasuredPoint, ...] = ()
    run: str | None = None
    is_read: bool = False

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """The values as the decisions of a search take them. One that is not finite is NaN."""
        return tuple(
            Measurement(step=point.step, value=math.nan if point.value is None else point.value, time_s=point.time_s)
            for point in self.points
        )


TRIAL: Final = TypeAdapter(TrialRecord)
"""Parses and serializes a `TrialRecord` as JSON."""
