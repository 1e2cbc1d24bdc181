"""The evaluator: it looks at the checkpoints of a training beside which it runs, and never gets in its way."""

# Keras is partly without types: what comes from it is unknown to the checker, in this file alone.
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
from lockstep.checkpoints.watching import CheckpointWatcher
from lockstep.errors import InvalidInputError, LockstepError, UnavailableError
from lockstep.parameter_server.cluster import Cluster
from lockstep.parameter_server.coordination.messages import WATCH
from lockstep.parameter_server.links import Message
from lockstep.topology import Topology

LOGGER: Final = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 1.0


@runtime_checkable
class SavesCheckpoints(Protocol):
    """A callback of ``fit`` that saves checkpoints, as `lockstep.training.BackupAndRestore` does."""

    @property
    def checkpoint_directory(self) -> str:
        """Where they are."""
        ...


@runtime_checkable
class TakesEvaluations(Protocol):
    """A callback of ``fit`` that is told, in the evaluator, what came of a checkpoint."""

    def on_checkpoint_evaluated(self, step: int, logs: Mapping[str, Any]) -> None:
        """Takes the results.

        Args:
            step: the checkpoint's.
            logs: loss and metrics.
        """
        ...


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@final
class StoredRows:
    """The rows of a checkpoint's tables; those that were met are in memory."""

    def __init__(self) -> None:
        self._tables: dict[str, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = {}

    def take(self, tables: Sequence[StoredTable]) -> None:
        """Reads the tables of a checkpoint, in place of those of the one before.

        Raises:
            CorruptDataError: rows cannot be read.
        """
        self._tables.clear()
        for table in tables:
            parts = [(rows.ids, rows.values) for rows in table.rows()]
            if parts:
                ids = np.concatenate([own for own, _ in parts])
                order = np.argsort(ids)
                self._tables[table.saved.name] = ids[order], np.concatenate([values for _, values in parts])[order]

    def read(self, layer: Any, ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Returns rows of an embedding: the first values of those that were not met.

        Args:
            layer: the embedding.
            ids: int64[rows].

        Returns:
            float32[rows, columns].
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
        model: a built and compiled model.
        arguments: those of ``fit``, by name.
        directory: where the checkpoints are.
        rows: takes the rows of tables.
        tell: prints a line.

    Raises:
        InvalidInputError: there is no validation data, or the directory's URL is of a wrong kind.
    """

    def __init__(
        self,
        model: Any,
        arguments: Mapping[str, Any],
        *,
        directory: str,
        rows: StoredRows,
        tell: Callable[[str], object] = _print,
    ) -> None:
        data = arguments.get("validation_data")
        if data is None:
            raise InvalidInputError(
                "an evaluator has nothing to evaluate by: fit was given no validation_data",
                action="give it some, or start no evaluator",
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
        self._tell = tell
        self._watcher = CheckpointWatcher(directory)

    def run(self, ended: threading.Event) -> int:
        """Evaluates until the training has ended and its last checkpoint has been evaluated; returns how many were.

        Args:
            ended: set when the training has ended: no checkpoint is written after that.

        Raises:
            InvalidInputError: a checkpoint is of another model.
        """
        num_evaluated = 0
        with contextlib.closing(self._watcher):
            while True:
                is_over = ended.is_set()  # before the look, so that the last one is seen
                state = self._watcher.next()
                if state is not None:
                    num_evaluated += self._evaluate(state)
                elif is_over:
                    break
                else:
                    ended.wait(LOOK_EVERY_S)
        if not num_evaluated:
            LOGGER.warning("the training has ended, and no checkpoint of it was in %s", self._watcher.url)
        return num_evaluated

    def _evaluate(self, state: TrainingState) -> bool:
        step = state.position.step
        try:
            self._rows.take(state.tables)
        except LockstepError as error:  # a later one has taken its place, and its rows are gone
            LOGGER.warning("the checkpoint of step %d is passed over: %s", step, error)
            return False
        state.apply(self._model)
        logs: dict[str, float] = self._model.evaluate(**self._data, verbose=0, return_dict=True)
        self._tell(f"checkpoint of step {step}: {', '.join(f'{name} {value:.4g}' for name, value in logs.items())}")
        for callback in self._callbacks:
            callback.on_checkpoint_evaluated(step, logs)
        return True


def watch_coordinator(cluster: Cluster) -> threading.Event:
    """Returns what will be set when the coordinator has ended; it may be lost and come back before.

    Where it is not there for too long, it counts as ended.
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
                            "%s has lost the coordinator, and waits for it to come back: %s", cluster.who, error
                        )
                        continue
            except LockstepError as error:
                LOGGER.warning("%s goes on to the last checkpoint, and ends: %s", cluster.who, error)
            ended.set()

    threading.Thread(target=watch, name="lockstep-coordinator-watch", daemon=True).start()
    return ended


def checkpoint_directory(arguments: Mapping[str, Any], topology: Topology) -> str:
    """Returns where the checkpoints of a call of ``fit`` are: its callback's directory, or the job's.

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
    """Returns the callbacks that ``fit`` was given."""
    given = arguments.get("callbacks")
    if isinstance(given, keras.callbacks.CallbackList):
        return list(given.callbacks)
    return list(keras.tree.flatten(given)) if given else []
