"""Opens sources by name or by path."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Final

from lockstep.data.sources.arrays import ArrayFile
from lockstep.data.sources.base import AbstractSource
from lockstep.data.sources.containers import open_container
from lockstep.data.sources.digits import Digits
from lockstep.data.sources.fashion_mnist import find_fashion_mnist
from lockstep.data.sources.image_files import ImageFiles
from lockstep.data.sources.tables import CSV_SUFFIXES, open_table
from lockstep.data.sources.transcoding import Transcoding
from lockstep.errors import InvalidInputError, MissingInputError, closest
from lockstep.storage import glob_urls

SOURCES: Final = ("fashion-mnist", "digits")
"""The names of data sets that `open_source` knows."""

FORMS: Final = (*SOURCES, "a folder or .zip of images by class", *CSV_SUFFIXES, ".parquet", ".npy", ".npz")
"""The possible forms of a source, for error messages."""

_TABLES: Final = (*CSV_SUFFIXES, ".parquet")
_ARRAYS: Final = (".npy", ".npz")
_UNFIT: Final = re.compile(r"[^A-Za-z0-9._-]+")


def open_source(
    source: str | os.PathLike[str],
    *,
    folder: str | os.PathLike[str] | None = None,
    transcoding: Transcoding | None = None,
    key: str | None = None,
    column_types: Mapping[str, str] | None = None,
    delimiter: str | None = None,
) -> AbstractSource:
    """Opens a source.

    Args:
        source: one of `SOURCES`; or a path or URL of a folder or zip archive of images with one subfolder per class, of
            CSV or Parquet files (which may be a pattern), or of an ``.npy`` or ``.npz`` file.
        folder: the folder with the files of a data set of `SOURCES`; by default, the files are searched for.
        transcoding: how to transcode image files.
        key: the column of a table whose values are the rows' keys.
        column_types: the types of columns of CSV files, as for `lockstep.data.sources.tables.open_table`.
        delimiter: the delimiter of CSV files, as for `lockstep.data.sources.tables.open_table`.

    Raises:
        InvalidInputError: the kind of data set is unknown, an option does not apply to it, or an extra is missing.
        MissingInputError: a file does not exist.
        CorruptDataError: a file is damaged or has the wrong format.
        UnavailableError: the data set could not be found or downloaded.
    """
    text = os.fspath(source)
    kind = _kind(text)
    of_tables = {"key", "column_types", "delimiter"}
    takes = {"images": {"transcoding"}, "table": of_tables, "named": {"folder"}}.get(kind, set[str]())
    given: dict[str, Any] = {
        "folder": folder,
        "transcoding": None if transcoding == Transcoding() else transcoding,
        "key": key,
        "column_types": column_types or None,
        "delimiter": delimiter,
    }
    for option, value in given.items():
        if value is not None and option not in takes:
            raise InvalidInputError(_WRONG_OPTION_MESSAGES[option], received=text)
    if kind == "named":
        return _open_named(text, folder)
    if kind == "table":
        files = _find_files(text)
        return open_table(files, name=_name_of(text), key=key, column_types=column_types, delimiter=delimiter)
    if kind == "array":
        return ArrayFile(text, name=_name_of(text))
    return ImageFiles(open_container(text), name=_name_of(text), transcoding=transcoding)


_WRONG_OPTION_MESSAGES: Final = {
    "folder": "a folder (folder) applies only to data sets by name; for others, the source itself is the folder",
    "transcoding": "sizes, codecs and qualities (transcoding) are for image files",
    "key": "a column for keys (key) is for tables",
    "column_types": "types of columns (column_types) are for CSV files",
    "delimiter": "what separates columns (delimiter) is for CSV files",
}


def _kind(text: str) -> str:
    ending = os.path.splitext(text.lower())[1]
    if text in SOURCES:
        return "named"
    if ending in _TABLES:
        return "table"
    if ending in _ARRAYS:
        return "array"
    if "://" not in text and not os.path.exists(text):
        if "/" in text or ending:
            raise MissingInputError(f"there is no file or folder {text}", allowed=FORMS)
        raise InvalidInputError("no such data set", received=text, allowed=FORMS, action=closest(text, SOURCES))
    if ending == ".zip" or "://" in text or os.path.isdir(text):
        return "images"
    raise InvalidInputError("this kind of data set cannot be packed", received=text, allowed=FORMS)


def _open_named(name: str, folder: str | os.PathLike[str] | None) -> AbstractSource:
    if name == "fashion-mnist":
        return find_fashion_mnist(folder)
    if folder is not None:
        raise InvalidInputError("the digits come with Lockstep, not in a folder (folder)", received=os.fspath(folder))
    return Digits()


def _find_files(pattern: str) -> list[str]:
    found = glob_urls(pattern)
    if not found:
        raise MissingInputError(f"no file matches {pattern}")
    return found


def _name_of(text: str) -> str:
    """Derives a data set's name from a path: its last part, without suffix and without characters that are invalid."""
    if "://" not in text:
        text = os.path.abspath(text)
    last = text.rstrip("/").rpartition("/")[2]
    stem, ending = os.path.splitext(last)
    last = stem if ending.lower() in (*_TABLES, *_ARRAYS, ".zip") else last
    return _UNFIT.sub("-", last).strip("-._").lower() or "data"
