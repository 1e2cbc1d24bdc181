"""A callback that notices when training diverges, and stops, skips the step, or goes back to a checkpoint."""

# Keras sets a callback's model and parameters before it calls any other method.
# pyright: reportOptionalMemberAccess=false, reportUnknownMemberType=false

from __future__ import annotations

import logging
import math
import types
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, final

import keras
import numpy as np
from typing_extensions import override

from lockstep.errors import DivergenceError, InvalidInputError
from lockstep.strategies import fitting
from lockstep.strategies.observing import AbstractStepObserver, Execution, Wait
from lockstep.strategies.runs import RepeatCall
from lockstep.strategies.step_guard import BadStep, StepGuard
from lockstep.training.backup import BackupAndRestore
from lockstep.training.divergence_origin import Origin, find_origin
from lockstep.upstream.replacing import replace
from lockstep.upstream.table import Stage

logger = logging.getLogger(__name__)

ACTIONS: Final = ("stop", "skip", "restore")


@final
class Divergence(keras.callbacks.Callback, AbstractStepObserver):
    """Acts when the loss or a gradient of a training step is not finite.

    The check is part of the compiled step. A bad step changes nothing: parameters, optimizer, batch statistics, random
    state and metrics stay as they were. The message names the epoch, the step, and where it began: the data, a layer
    (in the forward or the backward pass), or the loss function.

    With float16, `keras.optimizers.LossScaleOptimizer` itself skips a step that overflows and makes the loss scale
    smaller. Such a step counts as bad only when the scale has fallen to 1.

    - "stop" ends ``fit`` with a `lockstep.errors.DivergenceError`. The model has the state before the bad step.
    - "skip" leaves the step out, as if its batch had not been there. After ``max_skips`` skipped steps, it stops.
    - "restore" begins ``fit`` again, which goes on from the latest checkpoint of `BackupAndRestore` with a learning
      rate that is smaller by ``rate_factor``. After ``max_restores``, and if the data itself is not finite, it stops.

    Under ``ParameterServerStrategy``, only "stop" is possible: workers apply gradients on their own, and the loss is
    checked after each batch.

    Args:
        action: "stop", "skip" or "restore".
        max_skips: the number of steps that may be skipped in one ``fit``.
        max_restores: the number of times that ``fit`` may begin again.
        rate_factor: the factor of the learning rate at each "restore", above 0 and at most 1.
        write: writes a line about a skipped step or a restore. By default, the line is logged as a warning.

    Raises:
        InvalidInputError: an argument is out of its range, or (in ``fit``) the action is not possible.
        DivergenceError: (in ``fit``) training has diverged and stops.
    """

    def __init__(
        self,
        action: Literal["stop", "skip", "restore"] = "stop",
        *,
        max_skips: int = 10,
        max_restores: int = 3,
        rate_factor: float = 0.5,
        write: Callable[[str], object] | None = None,
    ) -> None:
        super().__init__()
        if action not in ACTIONS:
            raise InvalidInputError("action", received=action, allowed=ACTIONS)
        for name, value in (("max_skips", max_skips), ("max_restores", max_restores)):
            if value < 0:
                raise InvalidInputError(name, received=value, allowed="0 or more")
        if not 0 < rate_factor <= 1:
            raise InvalidInputError("rate_factor", received=rate_factor, allowed="above 0, at most 1")
        self._action = action
        self._most = max_restores if action == "restore" else max_skips
        self._factor = rate_factor
        self._write = write or logger.warning
        self._run: fitting.KerasCall | None = None
        self._guard: StepGuard | None = None
        self._backup: BackupAndRestore | None = None
        self._num_restores = 0
        self._num_in_rate = 0
        self._is_restoring = False
        self._epoch = 0
        self.skipped: list[tuple[int, int]] = []
        """The epochs (from 0) and the numbers of the batches (from 0) of the steps that were skipped."""
        replace(Stage.STRATEGY)  # a model without a strategy is guarded too

    @override
    def set_model(self, model: Any) -> None:
        super().set_model(model)
        run = fitting.current_call()
        if run is None or run.method != "fit" or run.model is not model or run is self._run:
            return
        self._run = run
        if not self._is_restoring:
            self._num_restores, self.skipped = 0, []
        self._is_restoring = False
        self._num_in_rate = 0
        layout = fitting.current_layout()
        if layout is not None and layout.runs is not None:
            self._guard = None
            if self._action != "stop":
                raise InvalidInputError(
                    f"Divergence under {layout.name}, whose workers apply gradients on their own",
                    received=f"action={self._action!r}",
                    allowed='action="stop"',
                )
            return
        if self._action == "restore":
            self._check_restore(run)
        self._guard = run.guard = StepGuard(model, freezes=self._action != "skip")
        run.observe(self)
        run.checks.append(self._check_all_steps)

    def _check_restore(self, run: fitting.KerasCall) -> None:
        self._backup = next((one for one in run.callbacks if isinstance(one, BackupAndRestore)), None)
        if self._backup is None:
            raise InvalidInputError(
                'Divergence(action="restore") needs checkpoints',
                action="give fit a lockstep.training.BackupAndRestore too",
            )
        if isinstance(run.data, types.GeneratorType):
            raise InvalidInputError(
                'Divergence(action="restore") reads the data again',
                received="a generator, which can be read once",
                allowed="data that can be read again, such as arrays or lockstep.data.Batches",
            )
        if self._factor < 1:
            try:
                self._scale_rate(1.0)
            except TypeError:  # Keras raises it for a schedule
                raise InvalidInputError(
                    'Divergence(action="restore", rate_factor=...) makes the learning rate smaller',
                    received="a schedule of learning rates",
                    allowed="a learning rate that is a number, or rate_factor=1.0",
                ) from None

    def _scale_rate(self, factor: float) -> None:
        optimizer = self.model.optimizer
        optimizer.learning_rate = float(np.asarray(optimizer.learning_rate)) * factor

    @override
    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Checks that this is the ``fit`` whose steps are guarded."""
        if self._run is None or fitting.current_call() is not self._run:
            raise InvalidInputError(
                "Divergence guards the steps of the fit that it was given to",
                received="a CallbackList that was made before, or a loop without fit",
                allowed="fit(..., callbacks=[Divergence(), ...])",
            )

    @override
    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Records the number of the epoch, and makes the learning rate smaller after a restore."""
        self._epoch = epoch
        missing, self._num_in_rate = self._num_restores - self._num_in_rate, self._num_restores
        if missing and self._factor < 1:
            self._scale_rate(self._factor**missing)

    def get_state(self) -> dict[str, Any]:
        """Returns what a checkpoint says of this callback: how often the learning rate was made smaller."""
        return {"num_restores": self._num_restores}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what a checkpoint says of this callback."""
        self._num_in_rate = int(state["num_restores"])
        self._num_restores = max(self._num_restores, self._num_in_rate)

    @override
    def before_execution(self, execution: Execution) -> None:
        if self._guard is not None:
            self._act(self._guard.read(), num_begun=execution.num_steps)

    @override
    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Checks the loss, where workers of parameter servers train."""
        if self._guard is None:
            self._check_loss(logs)

    @override
    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Acts upon the last steps of the epoch."""
        if self._guard is None:
            self._check_loss(logs)
        else:
            self._check_all_steps()

    def _check_all_steps(self) -> None:
        if self._guard is not None:
            self._act(self._guard.read(num_unread=0))

    @override
    def waited(self, kind: Wait, *, began_s: float, ended_s: float) -> None:
        """Waits do not matter here."""

    @override
    def after_epoch(self) -> None:
        """Steps of an epoch are checked before the next execution, and in `on_epoch_end`."""

    @override
    def end(self, num_steps: int, *, settle: Callable[[], None]) -> None:
        """Nothing is left to do."""

    def _check_loss(self, logs: Mapping[str, Any] | None) -> None:
        loss = (logs or {}).get("loss")
        if loss is not None and not math.isfinite(float(np.asarray(loss))):
            raise DivergenceError(
                f"training has diverged in epoch {self._epoch + 1}: the loss is {float(np.asarray(loss))}",
                action="look for numbers in the data that are not finite, or make the learning rate smaller",
            )

    def _act(self, found: list[BadStep], *, num_begun: int = 0) -> None:
        """Acts upon bad steps.

        Args:
            found: the bad steps, of the current epoch.
            num_begun: the number of steps that count as taken and have not run yet.
        """
        for bad in found:
            assert self._run is not None, "its fit has begun"
            assert self._guard is not None, "which has found them"
            batch = self._run.num_taken - num_begun - (self._guard.num_steps - bad.number)
            where = f"epoch {self._epoch + 1}, batch {batch + 1}"
            origin = find_origin(self.model, bad.batch)
            if self._can_restore(origin):
                self._num_restores += 1
                self._is_restoring = True
                self._write(
                    f"{where}: {origin.text}; going back to the latest checkpoint with {self._factor:g} of the "
                    f"learning rate ({self._num_restores} of {self._most} times)"
                )
                raise RepeatCall
            if self._action == "skip" and len(self.skipped) < self._most:
                self.skipped.append((self._epoch, batch))
                self._write(f"{where}: {origin.text}; skipped ({len(self.skipped)} of {self._most} steps)")
                continue
            raise DivergenceError(
                f"training has diverged in {where}: {origin.text}{self._exhausted()}", action=origin.advice
            )

    def _can_restore(self, origin: Origin) -> bool:
        if self._action != "restore" or self._num_restores >= self._most or origin.is_in_data:
            return False
        return self._backup is not None and self._backup.has_checkpoint

    def _exhausted(self) -> str:
        if self._action == "skip":
            return f"; {len(self.skipped)} steps were skipped before, and max_skips is {self._most}"
        if self._action == "restore" and self._num_restores >= self._most:
            return f"; training went back {self._num_restores} times before, and max_restores is {self._most}"
        if self._action == "restore" and not (self._backup is not None and self._backup.has_checkpoint):
            return "; there is no checkpoint to go back to"
        return ""
