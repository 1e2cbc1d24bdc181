"""A callback that prints progress in whole lines, which are readable in a log."""

# Keras sets a callback's model and parameters before it calls any other method.
# pyright: reportOptionalMemberAccess=false, reportOptionalSubscript=false

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, final

import jax
import keras

from lockstep.errors import InvalidInputError
from lockstep.strategies import fitting
from lockstep.strategies.input import GlobalBatches


@final
class Progress(keras.callbacks.Callback):
    """Writes a whole line every few seconds: epoch, step, loss, metrics, speed, time left. Use it with ``verbose=0``.

    The speed excludes the first step, which compiles the program. In a job of several processes, only the first process
    writes.

    Args:
        every_s: the minimum time between lines, in seconds; 0 writes a line after each step.
        write: writes a line, which includes the line break; writes to standard output by default.
        clock: returns the time in seconds.

    Raises:
        InvalidInputError: ``every_s`` is negative.
    """

    def __init__(
        self,
        *,
        every_s: float = 5.0,
        write: Callable[[str], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        if every_s < 0:
            raise InvalidInputError("every_s", received=every_s, allowed="0 or more seconds")
        self.async_safe = True  # Keras may call the methods for batches from other threads, in any order
        self._every_s = every_s
        self._write = write or _write_out
        self._clock = clock
        self._lock = threading.Lock()
        self._is_silent = False
        self._data: GlobalBatches | None = None
        self._epoch = 0
        self._epoch_start_s = self._train_start_s = self._line_s = 0.0
        self._first_batch: int | None = None
        self._last_batch = -1
        self._mark_s = 0.0
        self._mark_batch = 0
        self._is_compiled = False

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Records the start time and the data."""
        run = fitting.current_call()
        self._data = run.data if run is not None and isinstance(run.data, GlobalBatches) else None
        self._is_silent = jax.process_index() != 0
        self._is_compiled = False
        self._train_start_s = self._clock()

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Starts to count an epoch's batches."""
        with self._lock:
            now_s = self._clock()
            self._epoch = epoch
            self._epoch_start_s = self._line_s = now_s
            self._first_batch = None
            self._last_batch = -1

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Writes a line if ``every_s`` seconds have passed since the last one."""
        with self._lock:
            now_s = self._clock()
            if batch <= self._last_batch:
                return
            self._last_batch = batch
            if self._first_batch is None:
                self._first_batch = batch
                self._mark_s, self._mark_batch = now_s, batch
            if not self._is_compiled:
                self._is_compiled = True
                self._line_s = now_s
                self._say(f"{self._epoch_name()}  first step after {now_s - self._train_start_s:.1f} s")
                return
            if now_s - self._line_s >= self._every_s:
                self._line_s = now_s
                self._say("  ".join([self._where(), *_metrics(logs), *self._speed(now_s)]))

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Writes the epoch's results."""
        with self._lock:
            took_s = self._clock() - self._epoch_start_s
            self._say("  ".join([f"{self._epoch_name()}  done in {took_s:.1f} s", *_metrics(logs)]))

    def _say(self, line: str) -> None:
        if not self._is_silent:
            self._write(line + "\n")

    def _epoch_name(self) -> str:
        return f"epoch {self._epoch + 1}/{self.params['epochs']}"

    def _where(self) -> str:
        num_steps = self.params.get("steps")
        done = self._last_batch + 1
        of_all = f"/{num_steps} ({100 * min(done, num_steps) // num_steps}%)" if num_steps else ""
        return f"{self._epoch_name()}  step {done}{of_all}"

    def _speed(self, now_s: float) -> list[str]:
        num_done = self._last_batch - self._mark_batch
        took_s = now_s - self._mark_s
        if num_done <= 0 or took_s <= 0:
            return []
        steps_per_s = num_done / took_s
        if self._data is not None:
            words = [f"{steps_per_s * self._data.batch_size:.0f} examples/s"]
        else:
            words = [f"{steps_per_s:.3g} steps/s"]
        num_steps = self.params.get("steps")
        if num_steps:
            num_left = (self.params["epochs"] - self._epoch) * num_steps - self._last_batch - 1
            words.append(f"{_duration(num_left / steps_per_s)} left")
        return words


def _metrics(logs: Mapping[str, Any] | None) -> list[str]:
    return [f"{name} {float(value):.4f}" for name, value in (logs or {}).items() if isinstance(value, int | float)]


def _duration(time_s: float) -> str:
    minutes, seconds = divmod(round(time_s), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def _write_out(line: str) -> None:
    sys.stdout.write(line)
    sys.stdout.flush()  # people read the log during training
