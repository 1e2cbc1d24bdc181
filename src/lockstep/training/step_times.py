"""Where the time of ``fit`` goes, measured without waiting for the devices.

Keras's loop starts a step and goes on before the step is computed. Three moments are known of each step anyway: when
the loop has waited for its batch, when it starts the step, and when its results have arrived in the callbacks. A device
computes from the later of the step's start and the end of the step before, to the arrival of its results. A wait of the
loop costs time only as far as no step was being computed meanwhile.
"""

from __future__ import annotations

import threading
from array import array
from collections import deque
from dataclasses import dataclass
from typing import Final, final

from lockstep.strategies.observing import Wait

MAX_TIMES: Final = 100_000
"""The number of step times that are kept. Of more, every second, fourth and so on is kept."""


@final
@dataclass(frozen=True, kw_only=True)
class _Begun:
    """A step, or an execution of several, that has begun and is not known to be computed.

    Attributes:
        start_s: when the loop has started it.
        num_steps: the number of steps.
        num_rows: the number of rows of its batches.
        is_first: whether it is the first one with batches of this size, for which the program is compiled.
        follows: whether it is not the first one after an epoch's beginning or an interruption.
    """

    start_s: float
    num_steps: int
    num_rows: int
    is_first: bool
    follows: bool


@final
class StepTimes:
    """The times of one call of ``fit``. Thread-safe, because Keras may report the end of steps in other threads.

    Args:
        now_s: the time at which ``fit`` begins, in seconds.

    Attributes:
        first_s: the time of the first steps with batches of one size, in which programs are compiled.
        busy_s: the time in which other steps were computed.
        waits_s: the time in which no step was computed because the loop waited, by what it waited for.
        validation_s: the time of validation.
        num_steps: the number of steps that are complete.
        num_rows: the number of rows of their batches.
        steady_s: the time of the steps that count for rates: those that follow another step of the same epoch.
        steady_steps: the number of these steps.
        steady_rows: the number of rows of their batches.
    """

    def __init__(self, *, now_s: float) -> None:
        self._lock = threading.Lock()
        self._begun: deque[_Begun] = deque()
        self._intervals: list[tuple[Wait, float, float]] = []
        self._done_s = now_s
        self._sizes: set[tuple[int, int]] = set()
        self._follows = False
        self._is_paused = False
        self._validation_began_s: float | None = None
        self._times = array("d")
        self._stride = 1
        self.first_s = self.busy_s = self.validation_s = self.steady_s = 0.0
        self.waits_s = dict.fromkeys(Wait, 0.0)
        self.num_steps = self.num_rows = self.steady_steps = self.steady_rows = 0

    def begin(self, *, num_steps: int, num_rows: int, now_s: float) -> None:
        """Records that the loop starts an execution.

        Args:
            num_steps: the number of its steps.
            num_rows: the number of rows of its batches.
            now_s: the time, in seconds.
        """
        with self._lock:
            self._settle_waits(now_s)
            size = (num_steps, num_rows)
            begun = _Begun(
                start_s=now_s,
                num_steps=num_steps,
                num_rows=num_rows,
                is_first=size not in self._sizes,
                follows=self._follows and not self._is_paused,
            )
            self._sizes.add(size)
            self._follows = True
            self._begun.append(begun)

    def complete(self, *, now_s: float) -> None:
        """Records that the results of the next execution have arrived.

        Args:
            now_s: the time, in seconds.
        """
        with self._lock:
            if not self._begun:
                return
            begun, before_s = self._begun.popleft(), self._done_s
            self._done_s = max(before_s, now_s)
            busy_s = self._done_s - max(before_s, begun.start_s)
            self.num_steps += begun.num_steps
            self.num_rows += begun.num_rows
            if begun.is_first:
                self.first_s += busy_s
                return
            self.busy_s += busy_s
            if begun.follows and not self._is_paused:
                self.steady_s += self._done_s - before_s
                self.steady_steps += begun.num_steps
                self.steady_rows += begun.num_rows
                self._keep((self._done_s - before_s) / begun.num_steps)

    def wait(self, kind: Wait, *, began_s: float, ended_s: float) -> None:
        """Records that the loop has waited; see `Wait`. Times are in seconds."""
        with self._lock:
            self._intervals.append((kind, began_s, ended_s))

    def interrupt(self) -> None:
        """Says that the next step does not follow the one before: an epoch has ended."""
        with self._lock:
            self._follows = False

    def pause(self, *, is_paused: bool) -> None:
        """Leaves steps out of the rates, such as those that are recorded by a profiler, or counts them again."""
        with self._lock:
            self._is_paused = is_paused
            self._follows = False

    def begin_validation(self, *, now_s: float) -> None:
        """Records that validation begins, at a time in seconds."""
        self._validation_began_s = now_s

    def end_validation(self, *, now_s: float) -> None:
        """Records that validation has ended, at a time in seconds."""
        with self._lock:
            if self._validation_began_s is not None:  # it may begin while the last steps are still being computed
                self.validation_s += max(0.0, now_s - max(self._validation_began_s, self._done_s))
                self._validation_began_s = None

    def end(self, *, now_s: float) -> None:
        """Records the waits after the last step. Times are in seconds."""
        with self._lock:
            self._settle_waits(now_s)

    def percentile_s(self, percent: float) -> float | None:
        """Returns the time below which this percentage of the steps took, in seconds; None if none is known."""
        with self._lock:
            times = sorted(self._times)
        return times[min(len(times) - 1, int(len(times) * percent / 100))] if times else None

    def _settle_waits(self, now_s: float) -> None:
        """Counts the parts of the waits up to now in which no step was computed."""
        if not self._begun:  # otherwise a step was computed all the time
            for kind, began_s, ended_s in self._intervals:
                self.waits_s[kind] += max(0.0, min(ended_s, now_s) - max(began_s, self._done_s))
        self._intervals.clear()

    def _keep(self, time_s: float) -> None:
        if self.steady_steps % self._stride == 0 or not self._times:
            self._times.append(time_s)
        if len(self._times) >= MAX_TIMES:
            self._times = self._times[::2]
            self._stride *= 2
