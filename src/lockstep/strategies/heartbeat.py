"""The callback that sends heartbeats from within ``fit``, ``evaluate`` and ``predict``."""

# JAX and Keras are only partly typed, so the type checker does not know the types of their values in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportOptionalMemberAccess=false

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, final

import keras
import numpy as np

from lockstep.heartbeat import Beat, current_sender


@final
class Heartbeat(keras.callbacks.Callback):
    """Sends step, epoch, loss, metrics and examples to the job's runner, a few times a second at most.

    In a managed job, ``fit``, ``evaluate`` and ``predict`` of a model that was compiled under a strategy add this
    callback by themselves. Add it yourself to a model without a strategy. Outside a job, it does nothing.

    Args:
        count_examples: a function that returns the number of examples so far. Without it, only steps per second are
            reported.
    """

    def __init__(self, *, count_examples: Callable[[], int] | None = None) -> None:
        super().__init__()
        self.async_safe = True  # Keras may call the methods for batches from other threads, in any order
        self._sender = current_sender()
        self._lock = threading.Lock()
        self._count_examples = count_examples
        self._examples_before = 0
        self._steps_of_others = 0
        self._epoch: int | None = None
        self._steps_before = 0
        self._first_batch: int | None = None
        self._last_batch = -1

    def set_model(self, model: Any) -> None:
        """Records the steps that were already reported. Keras calls this before any callback can restore the model."""
        super().set_model(model)
        if self._sender is not None:
            # Steps of another optimizer: of an earlier model, or of this model before it was compiled again.
            self._steps_of_others = max(0, self._sender.num_steps - self._num_optimizer_steps())

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Records the examples that were counted already, because Keras reads a batch to build the model."""
        self._epoch = None
        if self._count_examples is not None:
            before = 0 if self._sender is None else self._sender.num_examples
            self._examples_before = self._count_examples() - before

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Records the number of steps that the model has taken."""
        with self._lock:
            self._epoch = epoch + 1
            self._first_batch, self._last_batch = None, -1
            if self._sender is not None:
                self._steps_before = self._steps_of_others + self._num_optimizer_steps()
        self._send(None)

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Records the first batch of the epoch, because a restored epoch starts in its middle."""
        if self._first_batch is None:
            self._first_batch = batch

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Sends the state after a step."""
        with self._lock:
            self._last_batch = max(self._last_batch, batch)
        self._send(logs)

    def on_test_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Reports that the evaluation is running."""
        self._send(None)

    def on_predict_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Reports that the prediction is running."""
        self._send(None)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Sends an epoch's results."""
        self._send(logs)

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Sends the model's total number of steps if no epoch ran: a restored model may have nothing left to train."""
        if self._sender is not None and self._epoch is None:
            self._sender.send(Beat(step=self._steps_of_others + self._num_optimizer_steps()))

    def _num_optimizer_steps(self) -> int:
        optimizer = getattr(self.model, "optimizer", None)
        return 0 if optimizer is None else int(np.asarray(optimizer.iterations.value))

    def _send(self, logs: Mapping[str, Any] | None) -> None:
        if self._sender is None:
            return
        # An evaluation or a prediction alone has no steps, and its examples are not examples of the training.
        count_examples = None if self._epoch is None else self._count_examples
        numbers = {name: value for name, value in (logs or {}).items() if isinstance(value, int | float)}
        self._sender.send(
            Beat(
                step=None if self._epoch is None else self._step(),
                epoch=self._epoch,
                num_examples=None if count_examples is None else count_examples() - self._examples_before,
                metrics=numbers,
            )
        )

    def _step(self) -> int:
        num_steps = self._last_batch + 1 - (self._first_batch or 0) if self._last_batch >= 0 else 0
        return self._steps_before + num_steps
