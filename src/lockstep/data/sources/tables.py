"""CSV and Parquet files, read in batches of rows: a table larger than memory is packed as well as a small one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from lockstep.data.examples.features import AbstractFeature, FixedLenFeature, VarLenFeature
from lockstep.data.sources.base import AbstractPart, AbstractSource, Item, digest_of
from lockstep.errors import CorruptDataError, InvalidInputError, closest
from lockstep.storage import open_bucket, split_url

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import csv, parquet

COLUMN_TYPES: Final = ("int", "float", "text", "bool")
"""What a column of a CSV file can be said to be."""

_BLOCK_BYTES: Final = 1 << 22
_MAX_BATCH_ROWS: Final = 4096


class AbstractTable(AbstractPart):
    """Rows of one or more files behind each other.

    Args:
        urls: the files, which have the same columns.
        key: the column whose values are the rows' keys; the rows' numbers by default.
    """

    def __init__(self, urls: Sequence[str], *, key: str | None) -> None:
        self._urls = tuple(urls)
        self._key = key
        self._schema: pa.Schema | None = None
        with self._reading(self._urls[0]):
            schema, self._num_items, self._size_bytes = self._look()
        repeated = sorted({name for name in schema.names if schema.names.count(name) > 1})
        if repeated:
            raise InvalidInputError(
                f"{urls[0]} has several columns of one name", received=repeated[0], action="name them differently"
            )
        self._schema = schema
        self._features = {name: _feature(name, schema.field(name).type, url=urls[0]) for name in schema.names}
        if key is not None and key not in self._features:
            raise InvalidInputError(
                f"{urls[0]} has no column for keys",
                received=key,
                allowed=tuple(self._features),
                action=closest(key, self._features),
            )

    @property
    @final
    def features(self) -> Mapping[str, AbstractFeature]:
        """The columns: integers and truth values as int64, floats as float32, all else as text or bytes."""
        return self._features

    @property
    @final
    def num_items(self) -> int | None:
        """See the base class."""
        return self._num_items

    @property
    @final
    def size_bytes(self) -> int | None:
        """See the base class."""
        return self._size_bytes

    @property
    @final
    def has_any_order(self) -> bool:
        """False: rows are read one after the other."""
        return False

    @final
    def keys(self) -> Iterator[str] | None:
        """The rows' numbers, where they are the keys and their count is known."""
        return None if self._key is not None or self._num_items is None else map(str, range(self._num_items))

    @final
    def items(self, numbers: Iterable[int] | None = None) -> Iterator[Item]:
        """See the base class."""
        assert numbers is None, "rows have one order"
        number = 0
        names = tuple(self._features)
        for url in self._urls:
            for batch in self._batches(url):
                columns = [self._values(batch, name, url=url, first=number) for name in names]
                for row in zip(*columns, strict=True):
                    values = dict(zip(names, row, strict=True))
                    key = str(number) if self._key is None else _text(values[self._key])
                    yield Item(number=number, key=key, value=values)
                    number += 1

    @final
    def load(self, item: Item) -> Mapping[str, Any]:
        """Returns the row."""
        return item.value

    @abstractmethod
    def _look(self) -> tuple[pa.Schema, int | None, int | None]:
        """Returns the columns, the number of rows and the length, as far as they are known without reading."""

    @abstractmethod
    def _read(self, url: str) -> Iterator[pa.RecordBatch]:
        """Reads a file in batches."""

    def _batches(self, url: str) -> Iterator[pa.RecordBatch]:
        with self._reading(url):
            for batch in self._read(url):
                if not batch.schema.equals(self._schema):
                    raise InvalidInputError(
                        f"{url} has other columns than {self._urls[0]}",
                        received=_describe(batch.schema),
                        allowed=_describe(self._schema),
                    )
                yield batch

    @contextmanager
    def _reading(self, url: str) -> Generator[None]:
        """Turns what pyarrow raises into one line that names the file."""
        import pyarrow as pa

        try:
            yield
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowKeyError) as error:
            raise CorruptDataError(f"{url}: {error}", action=self._advice()) from None
        except OSError as error:  # pyarrow's own for what is no Parquet inside
            raise CorruptDataError(f"{url}: {error}") from None

    @abstractmethod
    def _advice(self) -> str | None:
        """Says what helps against a file that cannot be read."""

    def _values(self, batch: pa.RecordBatch, name: str, *, url: str, first: int) -> list[Any]:
        """Returns a column's values, of which none is missing: in a column of floats that is NaN."""
        import pyarrow as pa
        from pyarrow import compute

        column = batch.column(name)
        feature = self._features[name]
        item = column.type.value_type if _is_list(column.type) else column.type
        if isinstance(column, pa.DictionaryArray):
            column, item = column.dictionary_decode(), column.type.value_type
        with self._reading(url):  # a time may be of a zone that is not known here
            if feature.kind == "float_list" and not _is_list(column.type):
                column = compute.fill_null(column.cast(pa.float64()), float("nan"))
            elif _kind_of(item) is None:  # a date, a time, a decimal: as text
                column = column.cast(pa.list_(pa.string()) if _is_list(column.type) else pa.string())
        if _is_list(column.type) and feature.kind != "float_list" and column.flatten().null_count:
            row = first + next(row for row, values in enumerate(column.to_pylist()) if values and None in values)
            raise InvalidInputError(f"{url}: row {row} lacks a value within column {name!r}", action="fill it")
        if column.null_count:
            row = first + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
            raise InvalidInputError(
                f"{url}: row {row} has no value in column {name!r}",
                allowed="a value in each row; in columns of floats none is NaN",
                action=f"fill it, or read the column as floats (--column {name}=float)"
                if self._advice()
                else "fill it",
            )
        return column.to_pylist()


@final
class CsvTable(AbstractTable):
    """Rows of CSV files, whose first line names the columns.

    Args:
        urls: the files.
        key: as `AbstractTable` takes it.
        column_types: for columns by name one of `COLUMN_TYPES`; of others it is what their first rows look like.
    """

    def __init__(self, urls: Sequence[str], *, key: str | None, column_types: Mapping[str, str]) -> None:
        self._column_types = dict(column_types)
        super().__init__(urls, key=key)
        unknown = sorted(self._column_types.keys() - self._features.keys())
        if unknown:
            raise InvalidInputError(f"{urls[0]} has no such column", received=unknown[0], allowed=tuple(self._features))

    def _look(self) -> tuple[pa.Schema, None, int]:
        with self._open(self._urls[0]) as reader:
            return reader.schema, None, sum(_size_bytes(url) for url in self._urls)

    def _read(self, url: str) -> Iterator[pa.RecordBatch]:
        with self._open(url) as reader:
            yield from reader

    def _advice(self) -> str:
        return "where a column's first rows look otherwise than the rest, say what it is: --column NAME=float"

    @contextmanager
    def _open(self, url: str) -> Generator[csv.CSVStreamingReader]:
        import pyarrow as pa
        from pyarrow import csv

        types = {"int": pa.int64(), "float": pa.float64(), "text": pa.string(), "bool": pa.bool_()}
        # What the first file's first rows look like holds for all that come after them.
        seen = {} if self._schema is None else dict(zip(self._schema.names, self._schema.types, strict=True))
        said = {name: types[word] for name, word in self._column_types.items()}
        convert = csv.ConvertOptions(column_types={**seen, **said})
        bucket_url, key = split_url(url)
        with (
            open_bucket(bucket_url).open(key) as file,
            csv.open_csv(
                pa.PythonFile(file, mode="r"),
                read_options=csv.ReadOptions(block_size=_BLOCK_BYTES),
                convert_options=convert,
            ) as reader,
        ):
            yield reader


@final
class ParquetTable(AbstractTable):
    """Rows of Parquet files, one row group after the other.

    Args:
        urls: the files.
        key: as `AbstractTable` takes it.
    """

    def _look(self) -> tuple[pa.Schema, int, int]:
        num_rows = 0
        size_bytes = 0
        schema: Any = None
        for url in self._urls:
            with self._reading(url), self._open(url) as file:
                schema = schema or file.schema_arrow
                num_rows += file.metadata.num_rows
                groups = (file.metadata.row_group(number) for number in range(file.num_row_groups))
                size_bytes += sum(group.total_byte_size for group in groups)
        return schema, num_rows, size_bytes

    def _read(self, url: str) -> Iterator[pa.RecordBatch]:
        with self._open(url) as file:
            groups = (file.metadata.row_group(number) for number in range(file.num_row_groups))
            size_bytes = sum(group.total_byte_size for group in groups)
            rows_at_once = _BLOCK_BYTES * file.metadata.num_rows // max(size_bytes, 1)
            yield from file.iter_batches(max(1, min(_MAX_BATCH_ROWS, rows_at_once)))

    def _advice(self) -> None:
        return

    @contextmanager
    def _open(self, url: str) -> Generator[parquet.ParquetFile]:
        from pyarrow import parquet

        bucket_url, key = split_url(url)
        with open_bucket(bucket_url).open(key) as file, parquet.ParquetFile(file) as table:
            yield table


@final
class TableFiles(AbstractSource):
    """A data set of rows.

    Args:
        table: the rows.
        urls: the files that they are in.
        name: what the data set is called.
        options: what was asked for.
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
        """The columns."""
        return self._table.features

    @property
    def options(self) -> Mapping[str, Any]:
        """See the base class."""
        return self._options

    @property
    def is_sorted(self) -> bool:
        """False: rows stay in their order."""
        return False

    def fingerprint(self) -> str:
        """A digest of the files' names, lengths and times, and of the options."""
        return digest_of(sorted(self._options.items()), *(file_state(url) for url in self._urls))

    def splits(self) -> Mapping[str, AbstractTable]:
        """See the base class."""
        return {"train": self._table}


def open_table(
    urls: Sequence[str], *, name: str, key: str | None = None, column_types: Mapping[str, str] | None = None
) -> TableFiles:
    """Opens CSV or Parquet files, by the first one's ending.

    Args:
        urls: the files, in the order of their rows.
        name: what the data set is called.
        key: the column whose values are the rows' keys; their numbers by default.
        column_types: what columns of CSV files are, one of `COLUMN_TYPES` each.

    Raises:
        InvalidInputError: pyarrow is not installed, or an option does not fit the columns.
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
            raise InvalidInputError(f"the type of column {column!r}", received=word, allowed=COLUMN_TYPES)
    options: dict[str, Any] = {} if key is None else {"key": key}
    table: AbstractTable
    if urls[0].lower().endswith(".csv"):
        table = CsvTable(urls, key=key, column_types=types)
        options |= {"columns": types} if types else {}
    elif types:
        raise InvalidInputError("types of columns are for CSV files; a Parquet file states its own", received=urls[0])
    else:
        table = ParquetTable(urls, key=key)
    return TableFiles(table, urls, name=name, options=options)


def file_state(url: str) -> tuple[object, ...]:
    """Returns what changes when a file does: its name, its length and the time of its last change."""
    bucket_url, key = split_url(url)
    found = [item for item in open_bucket(bucket_url).list(key) if item.key == key]
    return (url, *((item.size_bytes, item.modified_time_s) for item in found))


def _size_bytes(url: str) -> int:
    bucket_url, key = split_url(url)
    return open_bucket(bucket_url).size_bytes(key)


def _describe(schema: pa.Schema | None) -> str:
    return "" if schema is None else ", ".join(f"{field.name}: {field.type}" for field in schema)


def _text(value: Any) -> str:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def _is_list(kind: pa.DataType) -> bool:
    from pyarrow import types

    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def _kind_of(kind: pa.DataType) -> Any:
    """Returns the type of a feature; None for what is packed as text after it is written out."""
    from pyarrow import types

    if types.is_integer(kind) or types.is_boolean(kind):
        return np.int64
    if types.is_floating(kind):
        return np.float32
    if any(test(kind) for test in (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)):
        return bytes
    return None


def _feature(name: str, kind: pa.DataType, *, url: str) -> AbstractFeature:
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    item = kind.value_type if _is_list(kind) else kind
    if types.is_nested(item) or types.is_null(item):
        raise InvalidInputError(
            f"{url}: column {name!r} cannot be packed",
            received=str(kind),
            allowed="numbers, truth values, text, bytes, dates and times, and lists of these",
            action="leave the column out" if types.is_nested(item) else "say what it is: --column NAME=text",
        )
    dtype = _kind_of(item) or bytes
    if types.is_fixed_size_list(kind):
        return FixedLenFeature((kind.list_size,), dtype)
    return VarLenFeature(dtype) if _is_list(kind) else FixedLenFeature((), dtype)
