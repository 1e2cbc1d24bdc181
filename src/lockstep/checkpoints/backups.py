"""What a training run is backed up by: a directory of checkpoints, written from wherever a strategy has its state."""

from __future__ import annotations

import abc
import logging
import os
from typing import Any, final

from typing_extensions import override

from lockstep.checkpoints.arrays import copy_to_host, is_finite
from lockstep.checkpoints.directory import CheckpointDirectory
from lockstep.checkpoints.state import Position, TrainingState
from lockstep.strategies.shares import gather_counts

logger = logging.getLogger(__name__)


class AbstractBackups(abc.ABC):
    """Saves a run's state and restores it.

    All of it belongs to the thread that calls ``fit``.
    """

    @property
    @abc.abstractmethod
    def url(self) -> str:
        """Where the checkpoints are."""

    @property
    @abc.abstractmethod
    def is_for_epochs_alone(self) -> bool:
        """Whether a state can be saved between epochs alone: where nobody can say which batches are in it."""

    @property
    @abc.abstractmethod
    def is_needed_at_once(self) -> bool:
        """Whether a part of the state may be lost while the run goes on, which a checkpoint then has to have."""

    @abc.abstractmethod
    def restore(self, model: Any) -> TrainingState | None:
        """Gives a model, and all that keeps state for it, the latest state; blocks.

        Returns:
            The state; None where there is none.

        Raises:
            CorruptDataError: the latest checkpoint cannot be read.
            InvalidInputError: it is of another model.
        """

    @abc.abstractmethod
    def save(self, model: Any, *, position: Position) -> None:
        """Starts to write the state; waits for the one before to be written.

        A state in which variables have become NaN or infinite is not written, which a line says: training could not go
        on from it, so that the last one stays the one before.

        Raises:
            StorageWriteError: this state, or the one before, could not be written.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Waits until what was saved is written, and lets go of the directory. Idempotent.

        Raises:
            StorageWriteError: it could not be written.
        """


@final
class DirectoryBackups(AbstractBackups):
    """Backups of a model whose state is this process's own.

    Args:
        directory: as for `CheckpointDirectory`.
        keep: how many checkpoints are kept.

    Raises:
        InvalidInputError: as there.
        StorageWriteError: as there.
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
    def is_for_epochs_alone(self) -> bool:
        return False

    @property
    @override
    def is_needed_at_once(self) -> bool:
        return False

    @override
    def restore(self, model: Any) -> TrainingState | None:
        state = self._directory.restore()
        if state is not None:
            state.apply(model)
        # A constant of a model may be infinite: what has been so from the beginning says nothing of the training.
        self._never_finite = frozenset(
            variable.path for variable in model.non_trainable_variables if not is_finite(copy_to_host(variable.value))
        )
        return state

    @override
    def save(self, model: Any, *, position: Position) -> None:
        state = TrainingState.capture(model, position=position)
        found = sorted(state.not_finite() - self._never_finite)
        # Each process has looked at its own shards, and either all of them save or none.
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
