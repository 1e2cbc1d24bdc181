"""The evaluator: evaluates the checkpoints of a training that runs beside it, and never delays that training."""

# Keras is only partly typed, so the checks below are off in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, final, runtime_checkable

import keras
import numpy as np

from lockstep.checkpoints import TrainingState
from lockstep.checkpoints.tables import StoredTable
from lockstep.checkpoints.watching import (
    POLL_INTERVAL_S,
    CheckpointWatcher,
    TakesEvaluations,
    describe_evaluation,
)
from lockstep.errors import InvalidInputError, LockstepError, UnavailableError
from lockstep.parameter_server.cluster import Cluster
from lockstep.parameter_server.coordination.messages import WATCH
from lockstep.parameter_server.links import Message
from lockstep.topology import Topology

LOGGER: Final = logging.getLogger(__name__)


@runtime_checkable
class SavesCheckpoints(Protocol):
    """A callback of ``fit`` that saves checkpoints, such as `lockstep.training.BackupAndRestore`."""

    @property
    def checkpoint_directory(self) -> str:
        """The directory of the checkpoints."""
        ...


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@final
class StoredRows:
    """The rows of a checkpoint's tables. The rows that the training has met are held in memory."""

    def __init__(self) -> None:
        self._tables: dict[str, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = {}

    def take(self, tables: Sequence[StoredTable]) -> None:
        """Reads the tables of a checkpoint. They replace those of the previous checkpoint.

        Raises:
            CorruptDataError: the rows cannot be read.
        """
        self._tables.clear()
        for table in tables:
            parts = [(rows.ids, rows.values) for rows in table.rows()]
            if parts:
                ids = np.concatenate([own for own, _ in parts])
                order = np.argsort(ids)
                self._tables[table.saved.name] = ids[order], np.concatenate([values for _, values in parts])[order]

    def read(self, layer: Any, ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Returns rows of an embedding. Rows that were not met have their first values.

        Args:
            layer: the embedding.
            ids: int64[rows], the ids of the rows.

        Returns:
            float32[rows, columns], the values of the rows.
        """
        found = layer.first_values().of(ids, num_columns=layer.output_dim, dtype=np.dtype(np.float32))
        if layer.path in self._tables:
            known, values = self._tables[layer.path]
            indices = np.minimum(np.searchsorted(known, ids), len(known) - 1)
            is_met = known[indices] == ids
            found[is_met] = values[indices[is_met]]
        return found


@final
class Evaluator:
    """Evaluates each new checkpoint on the validation data of a call of ``fit``.

    Args:
        model: the model, built and compiled.
        arguments: the arguments of ``fit`` by name.
        directory: the directory of the checkpoints.
        rows: the object that receives the rows of each checkpoint's tables.
        print_line: a function that prints a line.

    Raises:
        InvalidInputError: there is no validation data, or the directory has a URL of an unsupported kind.
    """

    def __init__(
        self,
        model: Any,
        arguments: Mapping[str, Any],
        *,
        directory: str,
        rows: StoredRows,
        print_line: Callable[[str], object] = _print,
    ) -> None:
        data = arguments.get("validation_data")
        if data is None:
            raise InvalidInputError(
                "the evaluator has no data: fit was called without validation_data",
                action="pass validation_data to fit, or start no evaluator",
            )
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        self._data = {
            "x": x,
            "y": y,
            "sample_weight": weights,
            "steps": arguments.get("validation_steps"),
            "batch_size": arguments.get("validation_batch_size") or arguments.get("batch_size"),
        }
        self._callbacks = [one for one in callbacks_of(arguments) if isinstance(one, TakesEvaluations)]
        self._model = model
        self._rows = rows
        self._print_line = print_line
        self._watcher = CheckpointWatcher(directory)

    def run(self, ended: threading.Event) -> int:
        """Evaluates checkpoints until the training and its last checkpoint are done; returns the number of evaluations.

        Args:
            ended: the event that is set when the training has ended. No checkpoint is written after that.

        Raises:
            InvalidInputError: a checkpoint belongs to another model.
        """
        num_evaluated = 0
        with contextlib.closing(self._watcher):
            while True:
                is_over = ended.is_set()  # read before the directory, so that the last checkpoint is not missed
                state = self._watcher.next()
                if state is not None:
                    num_evaluated += self._evaluate(state)
                elif is_over:
                    break
                else:
                    ended.wait(POLL_INTERVAL_S)
        if not num_evaluated:
            LOGGER.warning("the training has ended, and no checkpoint of it was in %s", self._watcher.url)
        return num_evaluated

    def _evaluate(self, state: TrainingState) -> bool:
        step = state.position.step
        try:
            self._rows.take(state.tables)
        except LockstepError as error:  # a later checkpoint has replaced this one and deleted its rows
            LOGGER.warning("the checkpoint of step %d is skipped: %s", step, error)
            return False
        state.apply(self._model)
        logs: dict[str, float] = self._model.evaluate(**self._data, verbose=0, return_dict=True)
        self._print_line(describe_evaluation(step, logs))
        for callback in self._callbacks:
            callback.on_checkpoint_evaluated(step, logs)
        return True


def watch_coordinator(cluster: Cluster) -> threading.Event:
    """Returns an event that is set when the coordinator has ended. A lost coordinator may come back before that.

    A coordinator that stays away for too long counts as ended.
    """
    ended = threading.Event()

    def watch() -> None:
        while not ended.is_set():
            try:
                with contextlib.closing(cluster.reach_chief()) as link:
                    try:
                        link.request(Message(kind=WATCH))
                    except UnavailableError as error:
                        LOGGER.warning(
                            "%s has lost the coordinator, and waits for it to come back: %s",
                            cluster.process_name,
                            error,
                        )
                        continue
            except LockstepError as error:
                LOGGER.warning("%s goes on to the last checkpoint, and ends: %s", cluster.process_name, error)
            ended.set()

    threading.Thread(target=watch, name="lockstep-coordinator-watch", daemon=True).start()
    return ended


def checkpoint_directory(arguments: Mapping[str, Any], topology: Topology) -> str:
    """Returns the checkpoint directory of a call of ``fit``: that of its callback, or else that of the job.

    Raises:
        InvalidInputError: there is neither.
    """
    own = next((one.checkpoint_directory for one in callbacks_of(arguments) if isinstance(one, SavesCheckpoints)), None)
    found = own or topology.outputs.checkpoint_dir
    if found is None:
        raise InvalidInputError(
            "an evaluator does not know where checkpoints are",
            action="give fit the callback lockstep.training.BackupAndRestore(directory)",
        )
    return found


def callbacks_of(arguments: Mapping[str, Any]) -> list[Any]:
    """Returns the callbacks among the arguments of ``fit``."""
    given = arguments.get("callbacks")
    if isinstance(given, keras.callbacks.CallbackList):
        return list(given.callbacks)
    return list(keras.tree.flatten(given)) if given else []
