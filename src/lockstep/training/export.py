"""Saves whole models to buckets and loads them, as Keras's own ``.keras`` files."""

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
"""The name of a model's file in a folder; the prediction server expects it."""

WRITE_TIMEOUT_S: Final = 1800
"""How long processes wait in `save_model` for the process that writes, while it is alive."""

_NO_ERROR: Final = "no error"


def save_model(model: Any, url: str | os.PathLike[str]) -> str:
    """Saves a model with its optimizer.

    In a job of several processes, every process must call this. The first process writes the file. The function returns
    in every process when the file is written.

    Args:
        model: a Keras model.
        url: the URL of a ``.keras`` file, or of a folder, in which the file is named `MODEL_FILE`. Only the first
            process's URL is used for writing.

    Returns:
        The URL of the file.

    Raises:
        ModelError: (in the process that writes) a class of the model cannot be serialized.
        StorageWriteError: (in the process that writes) the file could not be written.
        BackendError: the process that writes has failed, or not every process has called this function.
        PeerLostError: (in the processes that do not write) another process has ended its program.
    """
    target = _file_url(url)
    with whole_variables(model):
        if jax.process_index() == 0:
            try:
                _write(model, target)
            except Exception as error:
                with contextlib.suppress(LockstepError):  # this process's own error is more specific
                    _meet_after_write(f"{type(error).__name__}: {error}".partition("\n")[0])
                raise
    try:
        _meet_after_write(_NO_ERROR)
    except PeerLostError:
        if jax.process_index() != 0:  # the first process has written the file already
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
    """Waits until the process that writes has finished or failed."""
    watchdog = current_watchdog()
    if watchdog is not None:
        difference = watchdog.compare("save_model", [outcome], timeout_s=WRITE_TIMEOUT_S)
    else:  # one process, or processes that JAX has connected by itself
        failed = any(gather_counts(int(outcome != _NO_ERROR)))
        difference = "save_model has failed in the process that writes" if failed else None
    if difference is not None:
        raise BackendError(difference, action="call save_model in every process; see the first one's output")


def load_model(url: str | os.PathLike[str]) -> Any:
    """Loads a model that `save_model` saved. Within a strategy's scope, the strategy places its variables.

    Args:
        url: the URL of a ``.keras`` file, or of a folder with a file named `MODEL_FILE`.

    Returns:
        The Keras model.

    Raises:
        MissingInputError: there is no such file.
        ModelError: the file does not contain a model that can be loaded.
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
                action="register the model's custom layers with Keras before loading it",
            ) from error


def _file_url(url: str | os.PathLike[str]) -> str:
    text = os.fspath(url)
    return text if text.endswith(".keras") else join_url(text, MODEL_FILE)
