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
from lockstep.training.model_pictures import (
    HParam,
    check_hyperparameters,
    gradient_values,
    hyperparameter_summaries,
    image_values,
    weight_values,
)

_TRAIN: Final = "train"
_VALIDATION: Final = "validation"
_VALIDATION_PREFIX: Final = "val_"


@final
class TensorBoard(keras.callbacks.Callback):
    """Writes loss, metrics and learning rate as scalars, with the same names as Keras's own callback.

    On request, it writes histograms of weights and gradients, images and hyperparameters too.

    An epoch's results are written to ``train`` and ``validation`` under the log directory, as ``epoch_loss`` and so on.
    A batch's results are written to ``train``, as ``batch_loss`` and so on. Files for a remote bucket are written
    locally first. They are uploaded at the end of each epoch, and at the end of ``fit`` or the script, even after an
    error. In a job of several processes, only the first process writes.

    Args:
        log_dir: a local path, or the URL of a bucket.
        update_freq: "epoch", or a number of batches: every so many batches, a batch's results are written too.
        histogram_freq: every so many epochs, a histogram of each weight is written, as ``PATH/histogram``; 0 for never.
        gradient_batch: a batch, as inputs, targets and sample weights: with the weights' histograms, those of the
            gradients of the loss over this batch are written, as ``PATH/gradient``. Not in a job of several processes.
        images: images by name, which are written once, or a function of the model and the epoch that returns them,
            which is called at the end of each epoch, in every process. Each is an array of shape (rows, columns),
            (rows, columns, channels) or (images, rows, columns, channels): bytes, or numbers from 0 to 1.
        hyperparameters: booleans, numbers and texts by name, by which TensorBoard's page "HParams" compares runs.

    Raises:
        InvalidInputError: an argument is none of these.
        StorageWriteError: (in ``fit``) the files cannot be written.
    """

    def __init__(
        self,
        log_dir: str | os.PathLike[str],
        *,
        update_freq: Literal["epoch"] | int = "epoch",
        histogram_freq: int = 0,
        gradient_batch: tuple[Any, ...] | None = None,
        images: Mapping[str, Any] | Callable[[Any, int], Mapping[str, Any]] | None = None,
        hyperparameters: Mapping[str, HParam] | None = None,
    ) -> None:
        super().__init__()
        if histogram_freq < 0:
            raise InvalidInputError("histogram_freq", received=histogram_freq, allowed="0 or more epochs")
        if gradient_batch is not None and not histogram_freq:
            raise InvalidInputError("gradient_batch needs histogram_freq", received=0, allowed="1 or more epochs")
        is_number = isinstance(update_freq, int) and not isinstance(update_freq, bool) and update_freq >= 1
        if update_freq != "epoch" and not is_number:
            raise InvalidInputError("update_freq", received=update_freq, allowed='"epoch", or a number of batches')
        self.async_safe = update_freq == "epoch"  # Keras may then call `on_train_batch_end` late: it does nothing
        self._url = os.fspath(log_dir)
        self._batches_between = update_freq if isinstance(update_freq, int) else None
        self._histogram_freq = histogram_freq
        self._gradient_batch = gradient_batch
        self._images = images
        self._hyperparameters = None if hyperparameters is None else check_hyperparameters(hyperparameters)
        self._metrics: dict[str, str] = {}
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
        self._metrics = dict.fromkeys(bare, _VALIDATION) or {f"epoch_{name}": _TRAIN for name in training}
        self._write_pictures(epoch)
        self._publish()

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Writes the hyperparameters, with the tags of the results to compare, and closes the files."""
        if self._hyperparameters is not None and jax.process_index() == 0:
            writer = self._writer(".").file_writer
            for summary in hyperparameter_summaries(self._hyperparameters, metrics=self._metrics):
                writer.add_summary(summary)
        self._end()

    def _write_pictures(self, epoch: int) -> None:
        """Writes histograms and images. Every process takes part, because parts of the model may be in each."""
        writer = self._writer(_TRAIN) if jax.process_index() == 0 else None
        if self._histogram_freq and (epoch + 1) % self._histogram_freq == 0:
            for path, value in weight_values(self.model):
                if writer is not None:
                    writer.add_histogram(f"{path}/histogram", value, epoch)
            if self._gradient_batch is not None:
                for path, value in gradient_values(self.model, self._gradient_batch):
                    if writer is not None:
                        writer.add_histogram(f"{path}/gradient", value, epoch)
        is_first, images = epoch == self._first_epoch, self._images
        found = images(self.model, epoch) if callable(images) else (images if is_first else None)
        if found is not None and writer is not None:
            for tag, image in image_values(found):
                writer.add_image(tag, image, epoch, dataformats="HWC")

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
