"""A callback that saves checkpoints, and resumes from the latest one when training starts again."""

# Keras sets a callback's model and parameters before it calls any other method.
# pyright: reportOptionalMemberAccess=false, reportOptionalSubscript=false

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, final

import keras
import numpy as np

from lockstep.checkpoints import CheckpointDirectory, Position, TrainingState
from lockstep.checkpoints.backups import AbstractBackups, DirectoryBackups
from lockstep.checkpoints.ending import mark_ended, unmark_ended
from lockstep.checkpoints.run_state import RunState, metrics_in
from lockstep.checkpoints.state import optimizers_of
from lockstep.checkpoints.turnover import Ranking
from lockstep.errors import InvalidInputError, MissingInputError, StorageWriteError
from lockstep.strategies import fitting
from lockstep.strategies.input import GlobalBatches, OrderedBatches, ResumableData
from lockstep.strategies.observing import Wait
from lockstep.training.callback_states import CallbackStates
from lockstep.upstream.keras_callbacks import has_stopped, is_higher_better
from lockstep.upstream.keras_trainer import set_initial_epoch
from lockstep.upstream.replacing import replace
from lockstep.upstream.table import Stage

logger = logging.getLogger(__name__)


@final
@dataclass(frozen=True, kw_only=True)
class BestCheckpoint:
    """The checkpoint from which `BackupAndRestore.restore_best` has restored a model.

    Attributes:
        epoch: the number of epochs that were trained.
        step: the number of steps that were trained.
        metrics: the values of the metrics at the end of that epoch, by name.
    """

    epoch: int
    step: int
    metrics: Mapping[str, float]


@final
class BackupAndRestore(keras.callbacks.Callback):
    """Saves everything that decides the next step, and restores it when ``fit`` begins.

    That is: the parameters, the optimizer with the loss scale, the metrics, the random state, the position in the data,
    and the state of the other callbacks.

    A run that was killed and restarted with the same arguments ends with the same parameters as a run that was never
    killed. If the data knows its position (`lockstep.data.Batches` and `lockstep.data.Dataset` do), ``fit`` continues
    with the very next batch. Other data can only start again from its beginning, so with it the state is saved only
    between epochs. A finished run does not train further unless ``epochs`` is larger than before.

    If ``model.stop_training`` ends an epoch before its last step, the state within the epoch is saved. With data that
    does not know its position, the next run trains that epoch from its beginning. A state in which parameters have
    become NaN or infinite is not saved; the previous checkpoint remains the latest.

    In a job of several processes, every process needs the callback. The first process writes. If the model is divided
    over processes, each process writes its own shards, and all of them must be able to access the directory. Under
    ``ParameterServerStrategy``, the servers' state is saved when training begins and between epochs. It is written
    while training continues. If writing fails, a message reports it and training continues.

    The state of Keras's own callbacks is saved (``EarlyStopping``, ``ReduceLROnPlateau``, ``ModelCheckpoint``,
    ``SwapEMAWeights``), and that of each callback that has the methods ``get_state()`` and ``set_state(state)``; see
    `lockstep.training.callback_states`. If ``EarlyStopping`` has ended a run, the run does not train further. Wherever
    it is in the list of callbacks, this callback is called after the others, because they change what it saves.

    Each checkpoint has checksums of its files. If the latest one is damaged, ``fit`` resumes from the one before it,
    and a warning says so.

    Args:
        directory: a local path, a ``file://`` URL or a ``gs://`` URL. Each run needs its own directory.
        save_freq: "epoch", or the number of batches after which the state is saved within an epoch too.
        keep: the number of latest checkpoints to keep.
        keep_best: the number of best checkpoints to keep besides, of those that were saved at the end of an epoch.
        monitor: the name of the metric that decides which checkpoint is best.
        mode: whether the best value is the lowest ("min") or the highest ("max"). "auto" decides by the metric, as
            Keras's callbacks do.

    Raises:
        InvalidInputError: an argument is out of its range, or (in ``fit``) the direction of the metric is not known.
        StorageWriteError: (in ``fit``) a checkpoint cannot be written.
        CorruptDataError: (in ``fit``) there are checkpoints, and all of them are damaged.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        save_freq: Literal["epoch"] | int = "epoch",
        keep: int = 2,
        keep_best: int = 0,
        monitor: str = "val_loss",
        mode: Literal["auto", "min", "max"] = "auto",
    ) -> None:
        super().__init__()
        if save_freq != "epoch" and (not isinstance(save_freq, int) or isinstance(save_freq, bool) or save_freq < 1):
            raise InvalidInputError("save_freq", received=save_freq, allowed='"epoch", or a number of batches')
        if keep < 1:
            raise InvalidInputError("keep", received=keep, allowed="1 or more")
        if keep_best < 0:
            raise InvalidInputError("keep_best", received=keep_best, allowed="0 or more")
        if mode not in ("auto", "min", "max"):
            raise InvalidInputError("mode", received=mode, allowed=("auto", "min", "max"))
        self.saves_other_callbacks = True  # `lockstep.strategies.fitting` then calls this callback last
        self.async_safe = save_freq == "epoch"  # Keras may then call `on_train_batch_end` late: it does nothing
        self._directory_url = os.fspath(directory)
        self._batches_between = save_freq if isinstance(save_freq, int) else None
        self._keep = keep
        self._keep_best = keep_best
        self._monitor = monitor
        self._mode = mode
        self._callbacks = CallbackStates([])
        self._has_said_unmonitored = False
        self._backups: AbstractBackups | None = None
        self._run: fitting.KerasCall | None = None
        self._restored: TrainingState | None = None
        self._is_first_epoch = True
        self._epoch = 0
        self._num_saved_batches = 0
        self._has_checkpoint = False
        replace(Stage.STRATEGY)  # a model without a strategy has to report its progress too

    @property
    def checkpoint_directory(self) -> str:
        """The directory of the checkpoints, from which an evaluator reads them."""
        return self._directory_url

    @property
    def has_checkpoint(self) -> bool:
        """Whether this ``fit`` has restored or saved a checkpoint."""
        return self._has_checkpoint

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Restores the latest state, if there is one."""
        optimizers = optimizers_of(self.model)
        if not self.model.built or (optimizers and not any(optimizer.built for optimizer in optimizers)):
            raise InvalidInputError(
                "BackupAndRestore needs a built model",
                received=f"{self.model.name}, which is not built",
                action="begin it with a keras.Input, or call it on a batch before fit",
            )
        self._run = fitting.current_call()
        self._is_first_epoch = True
        open_backups = self._run.open_backups if self._run is not None else None
        self._backups = (open_backups or DirectoryBackups)(self._directory_url, keep=self._keep)
        self._record(unmark_ended)
        if self._run is not None:
            self._run.exit_stack.callback(self._close_backups)
        if self._keep_best:
            self._backups.rank(self._ranking(self.model))
        self._check_data()
        others = [one for one in self._run.callbacks if one is not self] if self._run is not None else []
        self._callbacks = CallbackStates(others)
        with self._waiting():
            self._restored = self._backups.restore(self.model)
        self._has_checkpoint = self._restored is not None
        if self._restored is None:
            return
        position = self._restored.position
        if position.batch and self._data is None:
            raise InvalidInputError(
                f"the checkpoint in {self._backups.url} is from within an epoch, and this data cannot resume there",
                received=f"batch {position.batch} of epoch {position.epoch + 1}",
                action="pass data that can resume, such as lockstep.data.Batches",
            )
        self._check_order(position)
        self._callbacks.restore(self._restored.run_state().callbacks)
        num_epochs = self.params["epochs"]
        stopped = [callback for callback in others if has_stopped(callback)]
        is_over = position.batch == 0 and bool(stopped)
        # `fit` reads this after the callbacks' on_train_begin; keras.callbacks.BackupAndRestore does the same.
        set_initial_epoch(self.model, num_epochs if is_over else position.epoch)
        if self._run is not None:
            self._run.num_skipped_epochs = position.epoch
        if is_over:
            logger.warning(
                "restored from %s: EarlyStopping has ended this run after epoch %d; nothing to do",
                self._backups.url,
                position.epoch,
            )
            return
        # A warning, so that it is visible by default: this run does not start from its beginning.
        logger.warning(
            "restored from %s: going on with epoch %d, batch %d (step %d)",
            self._backups.url,
            position.epoch + 1,
            position.batch + 1,
            position.step + 1,
        )
        if position.epoch >= num_epochs:
            logger.warning("all %d epochs are already trained; nothing to do", num_epochs)

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Sets the position of the first epoch's data, and restores the metrics, which Keras has just reset."""
        self._epoch = epoch
        self._num_saved_batches = 0
        restored, self._restored = self._restored, None
        if not self._is_first_epoch:
            return
        self._is_first_epoch = False
        if restored is None and self._backups is not None and self._backups.needs_initial_checkpoint:
            self._save(epoch=epoch, batch=0)  # otherwise the first epoch would have no checkpoint
        batch = restored.position.batch if restored is not None else 0
        self._num_saved_batches = batch
        if restored is not None and batch:
            restored.apply_metrics(self.model)
        if self._data is not None and self._run is not None:
            total = epoch * self._num_steps + batch
            data_epoch, data_batch = divmod(total, self._num_batches)
            if isinstance(self._data, GlobalBatches):
                self._data.seek(epoch=data_epoch, batch=data_batch)
            else:
                self._data.start_at(epoch=data_epoch, batch=data_batch)
            self._run.first_step = batch

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Saves the state after every ``save_freq`` batches. At an epoch's last batch, `on_epoch_end` does it."""
        if self._batches_between is None or self._data is None or self._run is None:
            return
        num_batches = self._run.num_taken
        if num_batches - self._num_saved_batches >= self._batches_between and num_batches < self._num_steps:
            self._save_within_epoch(num_batches)

    def on_test_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Saves the state of an epoch that was stopped early, before validation resets the metrics."""
        if self.model.stop_training:
            self._save_stopped_epoch()

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Saves the state between two epochs, or within an epoch that was stopped early."""
        if not self._is_stopped_early:
            metrics = metrics_in(logs)
            if self._keep_best and self._monitor not in metrics and not self._has_said_unmonitored:
                self._has_said_unmonitored = True
                logger.warning(
                    "no checkpoint is kept as the best: epoch %d has no metric %s; it has %s",
                    epoch + 1,
                    self._monitor,
                    ", ".join(sorted(metrics)),
                )
            self._save(epoch=epoch + 1, batch=0, metrics=metrics)
            return
        self._save_stopped_epoch()
        if self._data is None:
            logger.warning("epoch %d was stopped early; the next run restarts this epoch", epoch + 1)

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Waits until the last state is written, and then records beside it that the training has ended."""
        set_initial_epoch(self.model, 0)
        self._close_backups()
        self._record(mark_ended)  # an evaluator ends by it

    def _record(self, record: Callable[[str], None]) -> None:
        """Records for evaluators whether this training has ended. If that fails, training goes on without it."""
        try:
            record(self._directory_url)
        except StorageWriteError as error:
            logger.warning("%s; an evaluator of this directory may end too early, or too late", error)

    def restore_best(self, model: Any) -> BestCheckpoint:
        """Restores a model from the best checkpoint in the directory, with its optimizer.

        Call it after ``fit``, or in a program of its own, under any strategy. In a job of several processes, every
        process must call it. Under ``ParameterServerStrategy``, it changes the coordinator's model, which is the one
        that is saved and evaluated; the servers keep theirs. To export the best model, save it afterwards::

            backup.restore_best(model)
            lockstep.training.save_model(model, url)

        Args:
            model: the model, built and compiled as it was trained.

        Returns:
            What is known about that checkpoint.

        Raises:
            MissingInputError: there is no checkpoint with the metric.
            CorruptDataError: every checkpoint with the metric is damaged.
            InvalidInputError: the checkpoint is of another model, or the direction of the metric is not known.
        """
        with CheckpointDirectory(self._directory_url, is_read_only=True) as directory:
            state = directory.restore_best(self._ranking(model))
            if state is None:
                raise MissingInputError(
                    f"no checkpoint in {directory.url} has the metric {self._monitor}",
                    action="train with keep_best=1 and with data for the metric, such as validation_data",
                )
            with fitting.scope_of(model):
                state.apply(model)
            metrics = state.run_state().metrics
        return BestCheckpoint(epoch=state.position.epoch, step=state.position.step, metrics=metrics)

    def _ranking(self, model: Any) -> Ranking:
        try:
            is_up = is_higher_better(model, monitor=self._monitor, mode=self._mode)
        except ValueError:
            raise InvalidInputError(
                f"whether {self._monitor} is better when it is higher is not known",
                received=f"mode={self._mode}",
                action='pass mode="max" or mode="min"',
            ) from None
        return Ranking(monitor=self._monitor, is_higher_better=is_up, num_kept=self._keep_best)

    def _close_backups(self) -> None:
        """Waits until the last state is written. Also called if ``fit`` ends with an error or by Ctrl-C."""
        backups, self._backups = self._backups, None
        if backups is not None:
            with self._waiting():
                backups.close()

    def _waiting(self) -> AbstractContextManager[None]:
        """Says within a ``with`` block that ``fit`` waits for a checkpoint."""
        return nullcontext() if self._run is None else self._run.waiting(Wait.CHECKPOINT)

    @property
    def _is_stopped_early(self) -> bool:
        return self._run is not None and self._backups is not None and self._run.is_epoch_cut

    def _save_stopped_epoch(self) -> None:
        if self._is_stopped_early and self._data is not None and self._run is not None:
            num_batches = self._run.num_taken
            if num_batches > self._num_saved_batches:
                self._save_within_epoch(num_batches)

    def _save_within_epoch(self, num_batches: int) -> None:
        self._num_saved_batches = num_batches
        self._save(epoch=self._epoch, batch=num_batches)

    @property
    def _data(self) -> GlobalBatches | ResumableData | None:
        data = self._run.data if self._run is not None else None
        saves_only_between_epochs = self._backups is not None and self._backups.saves_only_between_epochs
        return data if isinstance(data, GlobalBatches | ResumableData) and not saves_only_between_epochs else None

    @property
    def _num_batches(self) -> int:
        """The number of batches in the data's epoch; a huge number if it is not known."""
        assert self._data is not None, "asked of data that knows its place"
        return self._data.num_batches or sys.maxsize

    @property
    def _num_steps(self) -> int:
        """The number of steps in an epoch, for data that knows its position."""
        return int(self.params.get("steps") or self._num_batches)

    def _check_data(self) -> None:
        if self._data is None and self._batches_between is not None and self._backups is not None:
            why = "this data cannot resume within an epoch: the state is saved only between epochs; "
            what = "lockstep.data.Batches can resume"
            if self._backups.saves_only_between_epochs:
                why = "workers consume batches independently: the state is saved only between epochs"
                what = ""
            logger.warning("%s%s", why, what)

    def _check_order(self, position: Position) -> None:
        """Raises an InvalidInputError if the run would resume within an epoch whose batches have changed.

        Otherwise it would train on some records twice, and on others never.
        """
        data = self._data
        if data is None or position.order is None or not isinstance(data, OrderedBatches):
            return
        if (position.epoch * self._num_steps + position.batch) % data.num_batches == 0:
            return
        now = {name: value for name, value in data.order_key.items() if value != position.order.get(name)}
        if now:
            raise InvalidInputError(
                "the checkpoint is from within an epoch, and the data's batches have changed since",
                received=", ".join(f"{name} {value}" for name, value in now.items()),
                allowed=", ".join(f"{name} {position.order.get(name)}" for name in now),
                action="train to the end of the epoch as before, and change it then",
            )

    def _save(self, *, epoch: int, batch: int, metrics: Mapping[str, float] | None = None) -> None:
        assert self._backups is not None, "fit has begun"
        for check in self._run.checks if self._run is not None else ():
            check()
        self.model.jax_state_sync()
        step = max(int(np.asarray(optimizer.iterations.value)) for optimizer in optimizers_of(self.model))
        data = self._data
        order = dict(data.order_key) if isinstance(data, OrderedBatches) else None
        position = Position(epoch=epoch, batch=batch, step=step, order=order)
        run = RunState(metrics=metrics or {}, callbacks=self._callbacks.capture())
        with self._waiting():
            self._backups.save(self.model, position=position, run=run)
        self._has_checkpoint = True
