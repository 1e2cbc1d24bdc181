"""The data sets by name."""

from __future__ import annotations

import os
from typing import Final

from lockstep.data.sources.base import AbstractSource
from lockstep.data.sources.digits import Digits
from lockstep.data.sources.fashion_mnist import find_fashion_mnist
from lockstep.errors import InvalidInputError, closest

SOURCES: Final = ("fashion-mnist", "digits")
"""Names that `open_source` knows."""


def open_source(name: str, *, folder: str | os.PathLike[str] | None = None) -> AbstractSource:
    """Finds a data set.

    Args:
        name: one of `SOURCES`.
        folder: where its files are, for one that has files; by default it is looked for.

    Raises:
        InvalidInputError: there is no such data set, or it has no files to look for in a folder.
        MissingInputError: the folder lacks a file, or scikit-learn is not installed.
        CorruptDataError: a file is not what it should be.
        UnavailableError: it could not be found or downloaded.
    """
    if name not in SOURCES:
        raise InvalidInputError("no such data set", received=name, allowed=SOURCES, action=closest(name, SOURCES))
    if name == "fashion-mnist":
        return find_fashion_mnist(folder)
    if folder is not None:
        raise InvalidInputError("the digits come with scikit-learn, not in a folder", received=os.fspath(folder))
    return Digits()
