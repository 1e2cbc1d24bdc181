"""The checkpoints of a run as another process sees them that looks on: each new one once, and nothing is changed."""

from __future__ import annotations

import logging
import os
from typing import Final, final

from etils import epath

from lockstep.checkpoints.directory import CheckpointDirectory, open_path
from lockstep.checkpoints.state import TrainingState
from lockstep.errors import CorruptDataError

LOGGER: Final = logging.getLogger(__name__)


@final
class CheckpointWatcher:
    """Reads what another process saves.

    Args:
        directory: a local path, a ``file://`` or a ``gs://`` URL; it need not be there yet.

    Raises:
        InvalidInputError: the URL is of another kind.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._path: epath.Path = open_path(directory)
        self._directory: CheckpointDirectory | None = None
        self._last_step: int | None = None

    @property
    def url(self) -> str:
        """Where the checkpoints are."""
        return str(self._path)

    def next(self) -> TrainingState | None:
        """Returns the latest state where it is a new one; what was overtaken meanwhile is passed over.

        One that cannot be read is said, and passed over too.
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
            LOGGER.warning("%s is looked at again: %s", self._path, error)
            return None
        try:
            state = self._directory.restore()
            state = None if state is None else state.read()  # now: the other process removes it for a later one
        except CorruptDataError as error:
            if self._directory.latest_step() == step:  # else it was only removed meanwhile, for a later one
                self._last_step = step
                LOGGER.warning("the checkpoint of step %d is passed over: %s", step, error)
            return None
        self._last_step = step
        return state

    def close(self) -> None:
        """Lets go of the directory. Idempotent."""
        directory, self._directory = self._directory, None
        if directory is not None:
            directory.close()
