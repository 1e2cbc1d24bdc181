"""Computes a program's progress from its heartbeats."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, final

from lockstep.heartbeat import MAX_METRICS, Beat

RATE_WINDOW_S: Final = 30.0
"""The period over which steps and examples per second are computed, in seconds."""

COUNT_INTERVAL_S: Final = 0.1
"""The minimum time between heartbeats that count for the rates, in seconds; of faster ones, some are dropped."""


@final
@dataclass(frozen=True, kw_only=True)
class Progress:
    """A program's progress at its last heartbeat.

    Attributes:
        time_s: the time when the heartbeat arrived, in seconds since 1970 UTC.
        step: the number of steps, over all epochs.
        epoch: the current epoch, from 1.
        metrics: the loss and the other metrics by name, if they are finite.
        not_finite: the names of metrics whose values are infinite or NaN.
        steps_per_s: the steps per second over the last `RATE_WINDOW_S`; None if not known yet.
        examples_per_s: the examples per second over the last `RATE_WINDOW_S`; None if not known.
    """

    time_s: float
    step: int | None = None
    epoch: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    not_finite: tuple[str, ...] = ()
    steps_per_s: float | None = None
    examples_per_s: float | None = None

    def describe(self) -> str:
        """Describes the progress, as in "step 1200, epoch 3, loss 0.31, 5,120 examples/s"."""
        words = [] if self.step is None else [f"step {self.step}"]
        if self.epoch is not None:
            words.append(f"epoch {self.epoch}")
        words += [f"{name} {value:.4g}" for name, value in self.metrics.items()]
        words += [f"{name} not finite" for name in self.not_finite]
        if self.examples_per_s is not None:
            words.append(f"{self.examples_per_s:,.0f} examples/s")
        elif self.steps_per_s is not None:
            words.append(f"{self.steps_per_s:.3g} steps/s")
        return ", ".join(words) or "alive"


@final
class ProgressTracker:
    """Computes progress from the heartbeats of one program, in the order in which they arrive."""

    def __init__(self) -> None:
        self._last: Progress | None = None
        self._counts: deque[tuple[float, int | None, int | None]] = deque()

    def add(self, beat: Beat, *, now_s: float) -> Progress:
        """Adds a heartbeat and returns the progress after it.

        Args:
            beat: the heartbeat; values that it leaves out stay as they were.
            now_s: the current time, in seconds since 1970 UTC.
        """
        last = self._last or Progress(time_s=now_s)
        step = last.step if beat.step is None else beat.step
        self._count(now_s, step, beat.num_examples)
        metrics, not_finite = last.metrics, last.not_finite
        if beat.metrics:
            shown = list(beat.metrics.items())[:MAX_METRICS]
            metrics = {name: value for name, value in shown if math.isfinite(value)}
            not_finite = tuple(name for name, value in shown if not math.isfinite(value))
        self._last = Progress(
            time_s=now_s,
            step=step,
            epoch=last.epoch if beat.epoch is None else beat.epoch,
            metrics=metrics,
            not_finite=not_finite,
            steps_per_s=self._rate(1),
            examples_per_s=self._rate(2),
        )
        return self._last

    def _count(self, now_s: float, step: int | None, num_examples: int | None) -> None:
        if self._counts:
            before_s, step_before, _ = self._counts[-1]
            went_back = step is not None and step_before is not None and step < step_before
            if went_back or now_s < before_s:  # another training began, or the clock was set
                self._counts.clear()
        # A program that sends heartbeats all the time must not use up the runner's memory or time.
        if len(self._counts) > 1 and now_s - self._counts[-2][0] < COUNT_INTERVAL_S:
            self._counts.pop()
        self._counts.append((now_s, step, num_examples))
        while self._counts[0][0] < now_s - RATE_WINDOW_S and len(self._counts) > 2:
            self._counts.popleft()

    def _rate(self, column: int) -> float | None:
        known = [(count[0], count[column]) for count in self._counts if count[column] is not None]
        if len(known) < 2:
            return None
        (first_s, first), (last_s, last) = known[0], known[-1]
        assert first is not None
        assert last is not None
        return (last - first) / (last_s - first_s) if last_s > first_s and last >= first else None
