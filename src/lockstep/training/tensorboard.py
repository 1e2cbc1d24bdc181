"""A callback that writes event files for TensorBoard without TensorFlow."""

# Keras sets a callback's model and parameters before it calls any other method.
# pyright: reportOptionalMemberAccess=false, reportOptionalSubscript=false

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, final

import jax
import keras
import numpy as np
import tensorboardX

from lockstep.errors import InvalidInputError
from lockstep.processes.exits import finish_at_exit
from lockstep.strategies import fitting
from lockstep.training.event_files import EventFiles

_TRAIN: Final = "train"
_VALIDATION: Final = "validation"
_VALIDATION_PREFIX: Final = "val_"


@final
class TensorBoard(keras.callbacks.Callback):
    """Writes loss, metrics and learning rate as scalars, with the same names as Keras's own callback.

    An epoch's results are written to ``train`` and ``validation`` under the log directory, as ``epoch_loss`` and so on.
    A batch's results are written to ``train``, as ``batch_loss`` and so on. Files for a remote bucket are written
    locally first. They are uploaded at the end of each epoch, and at the end of ``fit`` or the script, even after an
    error. In a job of several processes, only the first process writes.

    Args:
        log_dir: a local path, or the URL of a bucket.
        update_freq: "epoch", or a number of batches: every so many batches, a batch's results are written too.

    Raises:
        InvalidInputError: ``update_freq`` is neither of these.
        StorageWriteError: (in ``fit``) the files cannot be written.
    """

    def __init__(self, log_dir: str | os.PathLike[str], *, update_freq: Literal["epoch"] | int = "epoch") -> None:
        super().__init__()
        is_number = isinstance(update_freq, int) and not isinstance(update_freq, bool) and update_freq >= 1
        if update_freq != "epoch" and not is_number:
            raise InvalidInputError("update_freq", received=update_freq, allowed='"epoch", or a number of batches')
        self.async_safe = update_freq == "epoch"  # Keras may then call `on_train_batch_end` late: it does nothing
        self._url = os.fspath(log_dir)
        self._batches_between = update_freq if isinstance(update_freq, int) else None
        self._files: EventFiles | None = None
        self._first_epoch = 0
        self._step = 0
        self._cancel_exit_hook: Callable[[], None] | None = None

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Chooses the folder in which the files are written."""
        self._first_epoch = -1
        self._begin()
        run = fitting.current_call()
        if run is not None:
            run.exit_stack.callback(self._end)  # also if `fit` ends with an error

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Records the first epoch of this run."""
        if self._first_epoch < 0:
            self._first_epoch = epoch
        if self._batches_between is not None and self.model.optimizer is not None:
            self._step = int(np.asarray(self.model.optimizer.iterations.value))

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Writes a batch's results every ``update_freq`` batches."""
        if self._batches_between is None:
            return
        step, self._step = self._step, self._step + 1
        if step % self._batches_between == 0:
            self._write(_TRAIN, {f"batch_{name}": value for name, value in (logs or {}).items()}, step)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Writes an epoch's results."""
        results = dict(logs or {})
        if self.model.optimizer is not None:
            results["learning_rate"] = float(np.asarray(self.model.optimizer.learning_rate))
        validation = {name: value for name, value in results.items() if name.startswith(_VALIDATION_PREFIX)}
        training = {name: value for name, value in results.items() if name not in validation}
        self._write(_TRAIN, {f"epoch_{name}": value for name, value in training.items()}, epoch)
        bare = {f"epoch_{name.removeprefix(_VALIDATION_PREFIX)}": value for name, value in validation.items()}
        self._write(_VALIDATION, bare, epoch)
        self._publish()

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Closes the files."""
        self._end()

    def on_checkpoint_evaluated(self, step: int, logs: Mapping[str, Any]) -> None:
        """Writes the evaluation results of a checkpoint, in the evaluator's process.

        The results are written to ``validation``, with the same names as Keras's own callback, such as
        ``evaluation_loss_vs_iterations``.

        Args:
            step: the step of the checkpoint.
            logs: the results by name.
        """
        if self._files is None:
            self._begin()  # `fit` is not called in that process
        self._write(_VALIDATION, {f"evaluation_{name}_vs_iterations": value for name, value in logs.items()}, step)
        self._publish()

    def _begin(self) -> None:
        self._end()
        self._files = EventFiles(self._url)
        self._cancel_exit_hook = finish_at_exit(self._end, what=f"the end of TensorBoard's files in {self._url}")

    def _forget_exit(self) -> None:
        cancel_exit_hook, self._cancel_exit_hook = self._cancel_exit_hook, None
        if cancel_exit_hook is not None:
            cancel_exit_hook()

    def _end(self) -> None:
        """Closes the files, and uploads what has not been uploaded yet. Idempotent."""
        self._forget_exit()
        files, self._files = self._files, None
        if files is not None:
            files.close()

    def _write(self, kind: str, scalars: Mapping[str, Any], step: int) -> None:
        if not scalars or jax.process_index() != 0:
            return
        writer = self._writer(kind)
        for name, value in scalars.items():
            writer.add_scalar(name, float(value), step)

    def _writer(self, kind: str) -> tensorboardX.SummaryWriter:
        assert self._files is not None, "fit has begun"
        # TensorBoard drops what a killed run wrote after its last checkpoint, because this run trains it again.
        return self._files.writer(kind, purge_step=self._first_epoch or None)

    def _publish(self) -> None:
        if self._files is not None:
            self._files.publish()
