"""What a training run is backed up by: a directory of checkpoints, written from wherever a strategy has its state."""

from __future__ import annotations

import abc
import os
from typing import Any, final

from typing_extensions import override

from lockstep.checkpoints.directory import CheckpointDirectory
from lockstep.checkpoints.state import Position, TrainingState


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
        return state

    @override
    def save(self, model: Any, *, position: Position) -> None:
        self._directory.save(TrainingState.capture(model, position=position))

    @override
    def close(self) -> None:
        self._directory.close()
