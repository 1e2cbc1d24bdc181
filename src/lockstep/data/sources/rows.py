"""The base class of tables, whose rows are read in batches, so that a table may be larger than memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from lockstep.data.examples.features import AbstractFeature, FixedLenFeature, VarLenFeature
from lockstep.data.sources.base import AbstractPart, Item
from lockstep.errors import CorruptDataError, InvalidInputError, closest

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK_BYTES: Final = 1 << 22
"""The approximate number of bytes of a table that are read at a time."""


class AbstractTable(AbstractPart):
    """The rows of one or more files, one file after the other.

    Args:
        urls: the URLs of the files, which must have the same columns.
        key: the column whose values are the rows' keys; None uses the rows' numbers.

    Raises:
        InvalidInputError: two columns have the same name, a column cannot be packed, or ``key`` is not a column.
        CorruptDataError: the first file cannot be read.
    """

    def __init__(self, urls: Sequence[str], *, key: str | None) -> None:
        self._urls = tuple(urls)
        self._key = key
        self._schema: pa.Schema | None = None
        with self._reading(self._urls[0]):
            schema, self._num_items, self._size_bytes = self._inspect()
        repeated = sorted({name for name in schema.names if schema.names.count(name) > 1})
        if repeated:
            raise InvalidInputError(
                f"{urls[0]} has several columns with the same name",
                received=repeated[0],
                action="name them differently",
            )
        self._schema = schema
        self._features = {name: _feature(name, schema.field(name).type, url=urls[0]) for name in schema.names}
        if key is not None and key not in self._features:
            raise InvalidInputError(
                f"{urls[0]} has no column for keys (key)",
                received=key,
                allowed=tuple(self._features),
                action=closest(key, self._features),
            )

    @property
    @final
    def features(self) -> Mapping[str, AbstractFeature]:
        """The features of the columns: int64 for integers and booleans, float32 for floats, bytes for all else."""
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
        """False: rows are read in order."""
        return False

    @final
    def keys(self) -> Iterator[str] | None:
        """Returns the numbers of the rows if they are the keys and their count is known; otherwise None."""
        return None if self._key is not None or self._num_items is None else map(str, range(self._num_items))

    @final
    def items(self, numbers: Iterable[int] | None = None) -> Iterator[Item]:
        """See the base class."""
        assert numbers is None, "rows have one order"
        number = 0
        names = tuple(self._features)
        for url in self._urls:
            first = 0
            for batch in self._batches(url):
                columns = [self._values(batch, name, url=url, first=first) for name in names]
                first += batch.num_rows
                for row in zip(*columns, strict=True):
                    values = dict(zip(names, row, strict=True))
                    key = str(number) if self._key is None else _text(values[self._key])
                    yield Item(number=number, key=key, value=values)
                    number += 1

    @final
    def load(self, item: Item) -> Mapping[str, Any]:
        """Returns the row."""
        return item.value

    @property
    @abstractmethod
    def notices(self) -> Sequence[str]:
        """What was detected when the table was opened, one line each."""

    @abstractmethod
    def _inspect(self) -> tuple[pa.Schema, int | None, int | None]:
        """Returns the schema, the number of rows and the length in bytes; None for numbers that need reading."""

    @abstractmethod
    def _read(self, url: str) -> Iterator[pa.RecordBatch]:
        """Reads a file in batches."""

    @abstractmethod
    def _describe_row(self, url: str, row: int) -> str:
        """Describes the position of a row in its file, for error messages.

        Args:
            url: the URL of the file.
            row: the number of the row in the file, from 0.
        """

    @abstractmethod
    def _missing_value_advice(self, name: str) -> str:
        """Returns the advice for a column with a missing value."""

    @final
    def _check_columns(self, schema: pa.Schema, url: str) -> None:
        if not schema.equals(self._schema):
            raise InvalidInputError(
                f"{url} has other columns than {self._urls[0]}",
                received=_describe(schema),
                allowed=_describe(self._schema),
            )

    @final
    def _batches(self, url: str) -> Iterator[pa.RecordBatch]:
        with self._reading(url):
            for batch in self._read(url):
                self._check_columns(batch.schema, url)
                yield batch

    @final
    @contextmanager
    def _reading(self, url: str) -> Generator[None]:
        """Turns exceptions of pyarrow into a CorruptDataError of one line that names the file."""
        import pyarrow as pa

        try:
            yield
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowKeyError) as error:
            raise CorruptDataError(f"{url}: {error}") from None
        except OSError as error:  # pyarrow raises it for invalid data within a Parquet file
            raise CorruptDataError(f"{url}: {error}") from None

    @final
    def _values(self, batch: pa.RecordBatch, name: str, *, url: str, first: int) -> list[Any]:
        """Returns the values of a column. A missing value is NaN in a column of floats, and an error in any other."""
        import pyarrow as pa
        from pyarrow import compute

        column = batch.column(name)
        feature = self._features[name]
        item = column.type.value_type if _is_list(column.type) else column.type
        if isinstance(column, pa.DictionaryArray):
            column, item = column.dictionary_decode(), column.type.value_type
        with self._reading(url):  # a time may have an unknown time zone
            if feature.kind == "float_list" and not _is_list(column.type):
                column = compute.fill_null(column.cast(pa.float64()), float("nan"))
            elif _kind_of(item) is None:  # dates, times and decimals are packed as text
                column = column.cast(pa.list_(pa.string()) if _is_list(column.type) else pa.string())
        if _is_list(column.type) and feature.kind != "float_list" and column.flatten().null_count:
            row = first + next(row for row, values in enumerate(column.to_pylist()) if values and None in values)
            raise InvalidInputError(
                f"{url}: {self._describe_row(url, row)} lacks a value within column {name!r}", action="fill it"
            )
        if column.null_count:
            row = first + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
            raise InvalidInputError(
                f"{url}: {self._describe_row(url, row)} has no value in column {name!r}",
                allowed="a value in each row; in float columns a missing value is NaN",
                action=self._missing_value_advice(name),
            )
        return column.to_pylist()


def _describe(schema: pa.Schema | None) -> str:
    return "" if schema is None else ", ".join(f"{field.name}: {field.type}" for field in schema)


def _text(value: Any) -> str:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def _is_list(kind: pa.DataType) -> bool:
    from pyarrow import types

    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def _kind_of(kind: pa.DataType) -> Any:
    """Returns the dtype of a feature; None for values that are formatted as text, such as dates."""
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
