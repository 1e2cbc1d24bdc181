"""Reads the checkpoints that another process saves: each new one once, without changing anything."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any, Final, Protocol, final, runtime_checkable

from etils import epath

from lockstep.checkpoints.directory import CheckpointDirectory, open_path
from lockstep.checkpoints.state import TrainingState
from lockstep.errors import CorruptDataError

LOGGER: Final = logging.getLogger(__name__)

POLL_INTERVAL_S: Final = 1.0
"""How long an evaluator waits before it looks for a new checkpoint again, in seconds."""


@runtime_checkable
class TakesEvaluations(Protocol):
    """A callback that receives, in the evaluator, the results of each evaluated checkpoint."""

    def on_checkpoint_evaluated(self, step: int, logs: Mapping[str, Any]) -> None:
        """Receives the results of one checkpoint.

        Args:
            step: the step of the checkpoint.
            logs: the loss and the metrics by name.
        """
        ...


def describe_evaluation(step: int, logs: Mapping[str, float]) -> str:
    """Returns the line that an evaluator prints: the step of a checkpoint, and its loss and metrics."""
    return f"checkpoint of step {step}: {', '.join(f'{name} {value:.4g}' for name, value in logs.items())}"


@final
class CheckpointWatcher:
    """Watches a directory for new checkpoints of another process.

    Args:
        directory: a local path, a ``file://`` URL or a ``gs://`` URL. The directory need not exist yet.

    Raises:
        InvalidInputError: the URL has another scheme.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._path: epath.Path = open_path(directory)
        self._directory: CheckpointDirectory | None = None
        self._last_step: int | None = None

    @property
    def url(self) -> str:
        """The URL or path of the directory."""
        return str(self._path)

    def next(self) -> TrainingState | None:
        """Returns the latest state if it is new, otherwise None. States that were replaced meanwhile are skipped.

        A checkpoint that cannot be read is skipped too, with a warning.
        """
        try:
            if self._directory is None:
                if not self._path.exists():
                    return None
                self._directory = CheckpointDirectory(self._path, is_read_only=True)
            step = self._directory.latest_step()
            if step is None or step == self._last_step:
                return None
        except (OSError, CorruptDataError) as error:
            LOGGER.warning("%s cannot be read; retrying: %s", self._path, error)
            return None
        try:
            state = self._directory.restore(step)
            state = None if state is None else state.read()  # now, before the other process removes it
        except CorruptDataError as error:
            if self._directory.latest_step() == step:  # otherwise it was replaced meanwhile
                self._last_step = step
                LOGGER.warning("the checkpoint of step %d is skipped: %s", step, error)
            return None
        self._last_step = step
        return state

    def close(self) -> None:
        """Closes the directory. Idempotent."""
        directory, self._directory = self._directory, None
        if directory is not None:
            directory.close()
