"""A source of CSV or Parquet files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, final

from lockstep.data.examples.features import AbstractFeature
from lockstep.data.sources.base import AbstractSource, digest_of, latest_time_s
from lockstep.data.sources.csv_rows import CsvTable
from lockstep.data.sources.delimiters import parse_delimiter
from lockstep.data.sources.parquet_rows import ParquetTable
from lockstep.data.sources.rows import AbstractTable
from lockstep.errors import InvalidInputError
from lockstep.storage import StoredObject, open_bucket, split_url

COLUMN_TYPES: Final = ("int", "float", "text", "bool")
"""The types that a column of a CSV file can be given."""

CSV_SUFFIXES: Final = (".csv", ".tsv")


@final
class TableFiles(AbstractSource):
    """A data set of the rows of tables.

    Args:
        table: the rows.
        urls: the URLs of the files.
        name: the name of the data set.
        options: the options with which the table was opened.
    """

    def __init__(self, table: AbstractTable, urls: Sequence[str], *, name: str, options: Mapping[str, Any]) -> None:
        self._table = table
        self._urls = tuple(urls)
        self._name = name
        self._options = dict(options)

    @property
    def name(self) -> str:
        """See the base class."""
        return self._name

    @property
    def origin(self) -> str:
        """See the base class."""
        return self._urls[0] if len(self._urls) == 1 else f"{len(self._urls)} files, from {self._urls[0]} on"

    @property
    def classes(self) -> tuple[str, ...]:
        """None."""
        return ()

    @property
    def features(self) -> Mapping[str, AbstractFeature]:
        """The features of the columns, by name."""
        return self._table.features

    @property
    def options(self) -> Mapping[str, Any]:
        """See the base class."""
        return self._options

    @property
    def is_sorted(self) -> bool:
        """False: rows stay in their order."""
        return False

    @property
    def notices(self) -> Sequence[str]:
        """See the base class."""
        return self._table.notices

    @property
    def changed_time_s(self) -> float:
        """See the base class."""
        return changed_time_s(self._urls)

    def fingerprint(self) -> str:
        """Returns a digest of the files' URLs, lengths and modification times, and of the options."""
        return digest_of(sorted(self._options.items()), *(file_state(url) for url in self._urls))

    def splits(self) -> Mapping[str, AbstractTable]:
        """See the base class."""
        return {"train": self._table}


def open_table(
    urls: Sequence[str],
    *,
    name: str,
    key: str | None = None,
    column_types: Mapping[str, str] | None = None,
    delimiter: str | None = None,
) -> TableFiles:
    """Opens CSV or Parquet files. The suffix of the first file decides between them.

    Args:
        urls: the URLs of the files, in the order of their rows.
        name: the name of the data set.
        key: the column whose values are the rows' keys; by default, the keys are the rows' numbers.
        column_types: the types of columns of CSV files by name, each one of `COLUMN_TYPES`.
        delimiter: the character that separates the columns of CSV files, or "tab"; by default, it is detected.

    Raises:
        InvalidInputError: pyarrow is not installed, or an option does not match the columns.
        CorruptDataError: a file cannot be read.
    """
    try:
        import pyarrow  # noqa: F401 - an extra
    except ImportError:
        raise InvalidInputError(
            "tables need the package pyarrow, which is not installed",
            action="run: pip install 'lockstep-train[tables]'",
        ) from None
    types = dict(column_types or {})
    for column, word in types.items():
        if word not in COLUMN_TYPES:
            raise InvalidInputError(
                f"the type of column {column!r} (column_types)", received=word, allowed=COLUMN_TYPES
            )
    options: dict[str, Any] = {} if key is None else {"key": key}
    table: AbstractTable
    if urls[0].lower().endswith(CSV_SUFFIXES):
        parsed = None if delimiter is None else parse_delimiter(delimiter)
        table = CsvTable(urls, key=key, column_types=types, delimiter=parsed)
        options |= {"columns": types} if types else {}
        options |= {"delimiter": table.delimiter} if table.delimiter != "," else {}
    elif types or delimiter is not None:
        raise InvalidInputError(
            "types of columns and a delimiter (column_types, delimiter) apply only to CSV files; a Parquet file "
            "states its own types",
            received=urls[0],
        )
    else:
        table = ParquetTable(urls, key=key)
    return TableFiles(table, urls, name=name, options=options)


def file_state(url: str) -> tuple[object, ...]:
    """Returns values that change when a file changes: its URL, its length and its modification time."""
    bucket_url, key = split_url(url)
    place = open_bucket(bucket_url).url_of(key)
    return (place, *((item.size_bytes, item.modified_time_s) for item in _listed(url)))


def changed_time_s(urls: Iterable[str]) -> float:
    """Returns the modification time of the newest file, in seconds since 1970 UTC; infinity if unknown."""
    return latest_time_s(item.modified_time_s for url in urls for item in _listed(url))


def _listed(url: str) -> list[StoredObject]:
    bucket_url, key = split_url(url)
    return [item for item in open_bucket(bucket_url).list(key) if item.key == key]
