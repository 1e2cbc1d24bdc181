"""Backups of a training run: its state is saved to checkpoints, wherever the strategy keeps that state."""

from __future__ import annotations

import abc
import logging
import os
from typing import Any, final

from typing_extensions import override

from lockstep.checkpoints.arrays import copy_to_host, is_finite
from lockstep.checkpoints.directory import CheckpointDirectory
from lockstep.checkpoints.run_state import RunState
from lockstep.checkpoints.state import Position, TrainingState
from lockstep.checkpoints.turnover import Ranking
from lockstep.strategies.shares import gather_counts

logger = logging.getLogger(__name__)


class AbstractBackups(abc.ABC):
    """Saves a run's state and restores it.

    Only the thread that calls ``fit`` may use the object.
    """

    @property
    @abc.abstractmethod
    def url(self) -> str:
        """The URL of the checkpoints."""

    @property
    @abc.abstractmethod
    def saves_only_between_epochs(self) -> bool:
        """Whether a state can be saved only between epochs, because within an epoch its batches are not known."""

    @property
    @abc.abstractmethod
    def needs_initial_checkpoint(self) -> bool:
        """Whether a checkpoint is needed at once, because a part of the state may be lost while the run continues."""

    @abc.abstractmethod
    def restore(self, model: Any) -> TrainingState | None:
        """Restores the latest state to a model, and to everything else that keeps state for it. Blocks.

        Returns:
            The state; None if there is none.

        Raises:
            CorruptDataError: there are checkpoints, and none of them can be read.
            InvalidInputError: the checkpoint is of another model.
        """

    @abc.abstractmethod
    def rank(self, ranking: Ranking) -> None:
        """Keeps the best checkpoints from now on, besides the latest ones."""

    @abc.abstractmethod
    def save(self, model: Any, *, position: Position, run: RunState | None = None) -> None:
        """Starts to write the state, after the previous state has been written completely.

        A state in which variables have become NaN or infinite is not written, because training could not resume from
        it. The previous checkpoint then remains the latest, and a warning is logged.

        Raises:
            StorageWriteError: this state, or the previous one, could not be written.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Waits until the last saved state is written, and closes the directory. Idempotent.

        Raises:
            StorageWriteError: the state could not be written.
        """


@final
class DirectoryBackups(AbstractBackups):
    """Backups of a model whose state is in the training processes themselves, not on parameter servers.

    Args:
        directory: the directory of the checkpoints, as for `CheckpointDirectory`.
        keep: the number of checkpoints to keep.

    Raises:
        InvalidInputError: as `CheckpointDirectory` raises it.
        StorageWriteError: as `CheckpointDirectory` raises it.
    """

    def __init__(self, directory: str | os.PathLike[str], *, keep: int) -> None:
        self._directory = CheckpointDirectory(directory, keep=keep)
        self._never_finite: frozenset[str] = frozenset()
        self._has_said = False

    @property
    @override
    def url(self) -> str:
        return self._directory.url

    @property
    @override
    def saves_only_between_epochs(self) -> bool:
        return False

    @property
    @override
    def needs_initial_checkpoint(self) -> bool:
        return False

    @override
    def restore(self, model: Any) -> TrainingState | None:
        state = self._directory.restore()
        if state is not None:
            state.apply(model)
        # A constant of a model may be infinite: values that were not finite at the start are no sign of a problem.
        self._never_finite = frozenset(
            variable.path for variable in model.non_trainable_variables if not is_finite(copy_to_host(variable.value))
        )
        return state

    @override
    def rank(self, ranking: Ranking) -> None:
        self._directory.rank(ranking)

    @override
    def save(self, model: Any, *, position: Position, run: RunState | None = None) -> None:
        state = TrainingState.capture(model, position=position, run=run)
        found = sorted(state.non_finite_variables() - self._never_finite)
        # Each process has checked its own shards. Either all processes save or none.
        counts = gather_counts(len(found)) if state.is_scattered else [len(found)]
        if not any(counts):
            self._directory.save(state)
        elif found and not self._has_said:
            self._has_said = True
            logger.warning(
                "the state after step %d is not saved: %s became NaN or infinite; the last backup is an earlier one",
                position.step,
                found[0] if len(found) == 1 else f"{len(found)} variables, {found[0]} among them,",
            )

    @override
    def close(self) -> None:
        self._directory.close()
