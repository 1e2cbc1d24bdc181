"""Whole models in buckets, as Keras's own ``.keras`` files."""

from __future__ import annotations

import os
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Final

import jax
import keras

from lockstep.errors import ModelError
from lockstep.storage import join_url, open_bucket, split_url
from lockstep.strategies.gathering import whole_variables

MODEL_FILE: Final = "model.keras"
"""The name of a model's file in a folder that holds one model, as the prediction server expects it."""


def save_model(model: Any, url: str | os.PathLike[str]) -> str:
    """Saves a model with its optimizer; in a job of several processes the first one writes, and all have to call this.

    Args:
        model: a Keras model.
        url: where to: a ``.keras`` file's URL, or a folder's, which gets a file named `MODEL_FILE`.

    Returns:
        The file's URL.

    Raises:
        StorageWriteError: it could not be written.
    """
    target = _file_url(url)
    with whole_variables(model):
        if jax.process_index() != 0:
            return target
        bucket_url, key = split_url(target)
        with tempfile.TemporaryDirectory(prefix="lockstep-model-") as folder:
            path = Path(folder) / MODEL_FILE
            model.save(path)
            open_bucket(bucket_url).upload(key, path=path)
    return target


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
