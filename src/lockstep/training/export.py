"""Whole models in buckets, as Keras's own ``.keras`` files."""

from __future__ import annotations

import contextlib
import os
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Final

import jax
import keras

from lockstep.errors import BackendError, LockstepError, ModelError, PeerLostError
from lockstep.storage import join_url, open_bucket, split_url
from lockstep.strategies.gathering import whole_variables
from lockstep.strategies.peers.watchdog import current_watchdog
from lockstep.strategies.saving import saving_error
from lockstep.strategies.shares import gather_counts

MODEL_FILE: Final = "model.keras"
"""The name of a model's file in a folder that holds one model, as the prediction server expects it."""

WRITE_TIMEOUT_S: Final = 1800
"""How long processes wait in `save_model` for one that lives and writes."""

_NO_ERROR: Final = "no error"


def save_model(model: Any, url: str | os.PathLike[str]) -> str:
    """Saves a model with its optimizer; in a job of several processes the first one writes, and all have to call this.

    It returns when the file is there, in every process.

    Args:
        model: a Keras model.
        url: where to: a ``.keras`` file's URL, or a folder's, which gets a file named `MODEL_FILE`. The first
            process's counts.

    Returns:
        The file's URL.

    Raises:
        ModelError: (in the process that writes) a class of the model's does not say how it is made again.
        StorageWriteError: (in the process that writes) it could not be written.
        BackendError: the process that writes has failed, or the processes do not all come here.
        PeerLostError: another process has ended its program; not in the one that writes.
    """
    target = _file_url(url)
    with whole_variables(model):
        if jax.process_index() == 0:
            try:
                _write(model, target)
            except Exception as error:
                with contextlib.suppress(LockstepError):  # this process's own error says more
                    _meet_after_write(f"{type(error).__name__}: {error}".partition("\n")[0])
                raise
    try:
        _meet_after_write(_NO_ERROR)
    except PeerLostError:
        if jax.process_index() != 0:  # the one that writes has done so, and others that have ended do not read it
            raise
    return target


def _write(model: Any, target: str) -> None:
    bucket_url, key = split_url(target)
    with tempfile.TemporaryDirectory(prefix="lockstep-model-") as folder:
        path = Path(folder) / MODEL_FILE
        try:
            model.save(path)
        except (NotImplementedError, TypeError):
            error = saving_error(model)
            if error is None:
                raise
            raise error from None
        open_bucket(bucket_url).upload(key, path=path)


def _meet_after_write(outcome: str) -> None:
    """Waits until the process that writes has written, or failed to."""
    watchdog = current_watchdog()
    if watchdog is not None:
        difference = watchdog.compare("save_model", [outcome], timeout_s=WRITE_TIMEOUT_S)
    else:  # one process, or those that JAX has brought together by itself
        failed = any(gather_counts(int(outcome != _NO_ERROR)))
        difference = "save_model has failed in the process that writes" if failed else None
    if difference is not None:
        raise BackendError(difference, action="call save_model in every process; see the first one's output")


def load_model(url: str | os.PathLike[str]) -> Any:
    """Loads a model that `save_model` saved; within a strategy's scope its variables go where the strategy says.

    Args:
        url: a ``.keras`` file's URL, or that of a folder with a file named `MODEL_FILE`.

    Returns:
        The Keras model.

    Raises:
        MissingInputError: there is no such file.
        ModelError: the file holds no model that can be loaded.
    """
    source = _file_url(url)
    bucket_url, key = split_url(source)
    with tempfile.TemporaryDirectory(prefix="lockstep-model-") as folder:
        path = Path(folder) / MODEL_FILE
        open_bucket(bucket_url).download(key, path=path)
        try:
            return keras.saving.load_model(path)
        except (ValueError, TypeError, KeyError, OSError, zipfile.BadZipFile) as error:
            first_line = str(error).partition("\n")[0]
            raise ModelError(
                f"{source} holds no model that can be loaded: {first_line}",
                action="a model with layers of its own can be loaded where they are registered with Keras",
            ) from error


def _file_url(url: str | os.PathLike[str]) -> str:
    text = os.fspath(url)
    return text if text.endswith(".keras") else join_url(text, MODEL_FILE)
