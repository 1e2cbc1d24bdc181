"""The mark in a directory of checkpoints that says that its training has ended, for programs that watch it."""

from __future__ import annotations

import os
from typing import Final

import jax

from lockstep.checkpoints.directory import open_path
from lockstep.errors import StorageWriteError

_MARK: Final = "training_ended"
"""The name of the file, beside the checkpoints. It is empty."""


def mark_ended(directory: str | os.PathLike[str]) -> None:
    """Records that a training has ended, and that its last checkpoint is complete.

    `lockstep.training.BackupAndRestore` does this at the end of ``fit``. In a loop of your own, call it after
    `CheckpointDirectory.close`. In a job of several processes, the first process writes, and the others do nothing.

    Args:
        directory: the directory of the checkpoints: a local path, a ``file://`` URL or a ``gs://`` URL.

    Raises:
        StorageWriteError: the directory cannot be written to.
        InvalidInputError: the URL has another scheme.
    """
    if jax.process_index() != 0:
        return
    path = open_path(directory)
    try:
        path.mkdir(parents=True, exist_ok=True)
        (path / _MARK).write_text("")
    except OSError as error:
        raise StorageWriteError(f"the end of the training cannot be recorded in {path}: {error}") from error


def unmark_ended(directory: str | os.PathLike[str]) -> None:
    """Removes the mark, because a training begins or goes on. Does nothing if there is none.

    Args:
        directory: the directory of the checkpoints, as for `mark_ended`.

    Raises:
        StorageWriteError: the mark cannot be removed.
        InvalidInputError: the URL has another scheme.
    """
    if jax.process_index() != 0:
        return
    path = open_path(directory)
    try:
        (path / _MARK).unlink(missing_ok=True)
    except OSError as error:
        raise StorageWriteError(f"the mark of an ended training cannot be removed from {path}: {error}") from error


def has_ended(directory: str | os.PathLike[str]) -> bool:
    """Whether the training that wrote to a directory has ended. No checkpoint is written after that.

    Args:
        directory: the directory of the checkpoints, as for `mark_ended`. It need not exist.

    Raises:
        OSError: the directory cannot be read.
        InvalidInputError: the URL has another scheme.
    """
    return (open_path(directory) / _MARK).exists()
