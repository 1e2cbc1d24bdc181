"""Evaluates the checkpoints of a training in another process, beside it, and exports the best model."""

# Keras is only partly typed, so the checks below are off in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, cast, final

import keras
from etils import epath

from lockstep.checkpoints import TrainingState
from lockstep.checkpoints.directory import open_path
from lockstep.checkpoints.ending import has_ended
from lockstep.checkpoints.run_state import metrics_in
from lockstep.checkpoints.turnover import Ranking
from lockstep.checkpoints.watching import POLL_INTERVAL_S, CheckpointWatcher, TakesEvaluations, describe_evaluation
from lockstep.errors import CorruptDataError, InvalidInputError, StorageWriteError
from lockstep.strategies import fitting
from lockstep.topology import Topology
from lockstep.training.export import save_model
from lockstep.upstream.keras_callbacks import is_higher_better

logger = logging.getLogger(__name__)

_RECORD: Final = "evaluations.json"
"""The name of the file with the results of each evaluated checkpoint, beside the checkpoints."""


@final
class SidecarEvaluator:
    """Evaluates each new checkpoint of a training that runs in other processes, under any strategy.

    It has the name and the arguments of ``tf.keras.utils.SidecarEvaluator``. It evaluates in its own process, with its
    own devices, and the training does not wait for it. If checkpoints appear faster than it evaluates them, it takes
    the latest one. A damaged checkpoint is skipped, and a warning says so.

    The results are kept in ``evaluations.json`` beside the checkpoints. An evaluator that is started again reads them:
    it does not evaluate a step twice, and it knows the best one. So only one evaluator may watch a directory.

    Args:
        model: the model, built and compiled as it is trained. It may be under another strategy than the training.
        data: the data for ``model.evaluate``, or a tuple of inputs, targets and sample weights. It is read once for
            each checkpoint.
        checkpoint_dir: the directory of the checkpoints: a local path, a ``file://`` URL or a ``gs://`` URL. It need
            not exist yet.
        steps: the number of batches of each evaluation; None for all of the data.
        max_evaluations: the number of evaluations after which `start` returns, with those before a restart; None for
            no limit.
        callbacks: callbacks for ``model.evaluate``. `lockstep.training.TensorBoard`, and any other with the method
            ``on_checkpoint_evaluated(step, logs)``, receives the results of each checkpoint besides.
        batch_size: the number of rows of a batch, if the data is arrays; None for Keras's own number.
        best_model_url: the URL of a ``.keras`` file or of a folder, as for `lockstep.training.save_model`, where the
            best model is saved each time that there is a better one. None to save none.
        monitor: the name of the metric by which a model is the best, such as "loss" or "accuracy".
        mode: whether the best value is the lowest ("min") or the highest ("max"). "auto" decides by the metric, as
            Keras's callbacks do.

    Raises:
        InvalidInputError: an argument is out of its range, the URL has another scheme, or this is not the job's first
            evaluator.
    """

    def __init__(
        self,
        model: Any,
        data: Any,
        checkpoint_dir: str | os.PathLike[str],
        steps: int | None = None,
        max_evaluations: int | None = None,
        callbacks: Sequence[Any] | None = None,
        *,
        batch_size: int | None = None,
        best_model_url: str | os.PathLike[str] | None = None,
        monitor: str = "loss",
        mode: Literal["auto", "min", "max"] = "auto",
    ) -> None:
        for name, value in (("steps", steps), ("max_evaluations", max_evaluations), ("batch_size", batch_size)):
            if value is not None and value < 1:
                raise InvalidInputError(name, received=value, allowed="1 or more, or None")
        if mode not in ("auto", "min", "max"):
            raise InvalidInputError("mode", received=mode, allowed=("auto", "min", "max"))
        task = Topology.from_env().task
        if task.role == "evaluator" and task.index:
            raise InvalidInputError(
                "several evaluators cannot watch one directory of checkpoints",
                received=f"evaluator {task.index}",
                allowed="evaluator 0",
                action='set evaluatorCount to "1"',
            )
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        self._arguments = {"x": x, "y": y, "sample_weight": weights, "steps": steps, "batch_size": batch_size}
        self._model = model
        self._directory_url = checkpoint_dir
        self._path: epath.Path = open_path(checkpoint_dir)
        self._max_evaluations = max_evaluations
        self._callbacks = list(callbacks or ())
        self._best_model_url = best_model_url
        self._monitor = monitor
        self._mode = mode
        self._results: dict[int, Mapping[str, float]] = {}

    @property
    def results(self) -> Mapping[int, Mapping[str, float]]:
        """The loss and the metrics by name of each evaluated checkpoint, by its step."""
        return dict(self._results)

    def start(self) -> None:
        """Evaluates checkpoints until the training has ended and its last checkpoint is evaluated. Blocks.

        The training has ended when ``fit`` with `lockstep.training.BackupAndRestore` has returned, or when a loop of
        your own has called `lockstep.checkpoints.mark_ended`. A training that was killed may be started again, so the
        evaluator waits for it. In a job, the service ends the evaluator half a minute after the master at the latest.

        Raises:
            InvalidInputError: a checkpoint belongs to another model, the results lack the metric ``monitor``, or its
                direction is not known.
            StorageWriteError: the results or the best model cannot be written.
        """
        self._results = self._read_results()
        with contextlib.closing(CheckpointWatcher(self._directory_url)) as watcher:
            while self._max_evaluations is None or len(self._results) < self._max_evaluations:
                is_over = self._is_over()  # read before the checkpoints, so that the last one is not missed
                state = watcher.next()
                if state is not None:
                    if state.position.step not in self._results:
                        self._evaluate(state)
                elif is_over:
                    break
                else:
                    time.sleep(POLL_INTERVAL_S)
        if not self._results:
            logger.warning("the training has ended, and no checkpoint of it was in %s", self._path)

    def _is_over(self) -> bool:
        try:
            return has_ended(self._directory_url)
        except OSError as error:
            logger.warning("%s cannot be read; retrying: %s", self._path, error)
            return False

    def _evaluate(self, state: TrainingState) -> None:
        step = state.position.step
        try:
            with fitting.scope_of(self._model):
                state.apply(self._model)
        except CorruptDataError as error:  # a later checkpoint has replaced this one, and its rows were removed
            logger.warning("the checkpoint of step %d is skipped: %s", step, error)
            return
        found = self._model.evaluate(**self._arguments, callbacks=self._callbacks, verbose=0, return_dict=True)
        results = metrics_in(found)
        for callback in self._callbacks:
            if isinstance(callback, TakesEvaluations):
                callback.on_checkpoint_evaluated(step, results)
        self._results[step] = results
        self._export_best(step)
        self._write_results()  # an evaluator that is killed before this evaluates the step again
        sys.stdout.write(f"{describe_evaluation(step, results)}\n")
        sys.stdout.flush()

    def _export_best(self, step: int) -> None:
        """Saves the model if the checkpoint that it holds is the best so far."""
        if self._best_model_url is None:
            return
        if self._monitor not in self._results[step]:
            raise InvalidInputError(
                "the results lack the metric by which a model is the best",
                received=f"monitor={self._monitor}",
                allowed=sorted(self._results[step]),
            )
        try:
            is_up = is_higher_better(self._model, monitor=self._monitor, mode=self._mode)
        except ValueError:
            raise InvalidInputError(
                f"whether {self._monitor} is better when it is higher is not known",
                received=f"mode={self._mode}",
                action='pass mode="max" or mode="min"',
            ) from None
        ranking = Ranking(monitor=self._monitor, is_higher_better=is_up)
        if ranking.best_first(self._results)[:1] == [step]:
            logger.info("step %d is the best so far: saved to %s", step, save_model(self._model, self._best_model_url))

    def _read_results(self) -> dict[int, Mapping[str, float]]:
        path = self._path / _RECORD
        try:
            document = cast("Mapping[str, Mapping[str, float]]", json.loads(path.read_text()))
            return {
                int(step): {name: float(value) for name, value in results.items()} for step, results in document.items()
            }
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            logger.warning("%s cannot be read, and evaluation begins anew: %s", path, error)
            return {}

    def _write_results(self) -> None:
        path, new = self._path / _RECORD, self._path / f"{_RECORD}.new"
        try:
            new.write_text(json.dumps({str(step): dict(results) for step, results in sorted(self._results.items())}))
            new.replace(path)
        except OSError as error:
            raise StorageWriteError(f"the results of evaluations cannot be written to {path}: {error}") from error
