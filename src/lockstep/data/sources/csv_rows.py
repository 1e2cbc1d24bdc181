"""The rows of CSV files, with types of columns that are guessed from the first rows.

A column is packed as text if a number could not represent what is written in it.
"""

from __future__ import annotations

import csv as python_csv
import io
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from lockstep.data.sources.delimiters import display_name, find_delimiter
from lockstep.data.sources.rows import BLOCK_BYTES, AbstractTable
from lockstep.errors import CorruptDataError, InvalidInputError, counted
from lockstep.storage import open_bucket, split_url

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import csv

_CODE: Final = r"^[+-]?0[0-9xX]"
"""The beginning of a numeral that a number cannot represent: 007 would become 7."""

_WHOLE: Final = r"^[+-]?[0-9]+$"
_INFINITY: Final = r"(?i)^[+-]?inf"
_MAX_DIGITS: Final = 18
_ROW: Final = re.compile(r"In CSV column #(\d+): Row #(\d+): (.*)", re.DOTALL)
_HEAD_ROWS: Final = 2
"""The offset of pyarrow's row numbers, which begin at 1 and count the line of names."""


@final
class CsvTable(AbstractTable):
    """The rows of CSV files whose first line has the names of the columns.

    pyarrow splits the rows into values and guesses the types of the columns. The values are converted to numbers here,
    where their text is still known. So a number that would lose information is detected, and errors name the value and
    its line.

    Args:
        urls: the URLs of the files.
        key: the column whose values are the rows' keys; None uses the rows' numbers.
        column_types: the types of columns by name, each one of `lockstep.data.sources.tables.COLUMN_TYPES`. The types
            of other columns are guessed from the first rows: "text" if a numeral begins with 0, or is too long for an
            integer.
        delimiter: the character that separates the columns; None detects it.

    Attributes:
        delimiter: the character that separates the columns.
    """

    def __init__(
        self, urls: Sequence[str], *, key: str | None, column_types: Mapping[str, str], delimiter: str | None
    ) -> None:
        self.delimiter = find_delimiter(urls[0]) if delimiter is None else delimiter
        self._given_types = dict(column_types)
        self._notices = [f"columns are separated by {display_name(self.delimiter)}"]
        super().__init__(urls, key=key)

    @property
    def notices(self) -> Sequence[str]:
        """The delimiter, and the columns that are packed as text or bytes instead of what they look like."""
        return self._notices

    def _inspect(self) -> tuple[pa.Schema, None, int]:
        import pyarrow as pa

        url = self._urls[0]
        with self._open(url, types={}) as reader:
            guessed = reader.schema
        unknown = sorted(self._given_types.keys() - set(guessed.names))
        if unknown:
            raise InvalidInputError(
                f"{url} has no such column (column_types)", received=unknown[0], allowed=tuple(guessed.names)
            )
        types = {"int": pa.int64(), "float": pa.float64(), "text": pa.string(), "bool": pa.bool_()}
        with self._open(url, types=dict.fromkeys(guessed.names, pa.binary())) as reader:
            head = next(iter(reader), None)
        if head is None or not head.num_rows:
            raise CorruptDataError(f"{url} has no rows after the line of names", received=", ".join(guessed.names))
        fields: list[pa.Field] = []
        for number, field in enumerate(guessed):
            word = self._given_types.get(field.name)
            kind = self._safe_type(field, head.column(number)) if word is None else types[word]
            fields.append(pa.field(field.name, kind))
        return pa.schema(fields), None, sum(_size_bytes(url) for url in self._urls)

    def _safe_type(self, field: pa.Field, values: pa.Array) -> pa.DataType:
        """Returns the type of a column: the guessed type if the first rows lose no information with it, else text."""
        import pyarrow as pa
        from pyarrow import types

        compute = _compute()
        if types.is_binary(field.type):
            self._notices.append(f"column {field.name!r} is packed as bytes: it is not UTF-8 text")
        if types.is_null(field.type) or types.is_binary(field.type):
            return field.type
        if not types.is_integer(field.type) and not types.is_floating(field.type):
            return pa.bool_() if types.is_boolean(field.type) else pa.string()  # dates and times stay text
        texts = _stripped(values.cast(pa.string()))
        lost = compute.match_substring_regex(texts, _CODE)
        reason = "begins with 0, which a number would drop"
        if not compute.any(lost).as_py() and types.is_floating(field.type):
            whole = compute.all(compute.match_substring_regex(texts, _WHOLE)).as_py()
            lost = compute.and_(compute.greater(compute.utf8_length(texts), _MAX_DIGITS), whole)
            reason = "is longer than an integer may be"
        first = _first(lost)
        if first is None:
            return field.type
        number = "float" if types.is_floating(field.type) else "int"
        self._notices.append(
            f"column {field.name!r} is packed as text: {texts[first].as_py()!r} {reason} "
            f"(as numbers: --column {field.name}={number})"
        )
        return pa.string()

    def _read(self, url: str) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyarrow import types

        assert self._schema is not None, "it was looked at"
        read_as = {field.name: field.type if types.is_binary(field.type) else pa.string() for field in self._schema}
        first = 0
        with self._open(url, types=read_as) as reader:
            if reader.schema.names != self._schema.names:
                self._check_columns(reader.schema, url)
            for batch in reader:
                columns = [
                    self._converted(values, field, url=url, first=first)
                    for values, field in zip(batch.columns, self._schema, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=self._schema)
                first += batch.num_rows

    def _converted(self, values: pa.Array, field: pa.Field, *, url: str, first: int) -> pa.Array:
        """Converts the texts of a column to numbers or booleans.

        Args:
            values: the texts.
            field: the name and the type of the column.
            url: the URL of the file.
            first: the row of the first text in the file, from 0.
        """
        from pyarrow import types

        if types.is_string(field.type) or types.is_binary(field.type):
            return values
        texts = _stripped(values)
        if field.name not in self._given_types and not types.is_boolean(field.type):
            self._reject_leading_zeros(texts, field, url=url, first=first)
        converted, bad = _booleans(texts) if types.is_boolean(field.type) else _numbers(texts, field.type)
        if bad is not None:
            word = "bool" if types.is_boolean(field.type) else "float" if types.is_floating(field.type) else "int"
            other = "float or text" if word == "int" else "text"
            raise CorruptDataError(
                f"{url}: {self._describe_row(url, first + bad)}: {texts[bad].as_py()!r} in column {field.name!r} "
                f"is not a valid {word}",
                action=f"correct it, or give the type of the column: --column {field.name}={other}",
            )
        if types.is_floating(field.type) and (overflow := _first_float32_overflow(texts, converted)) is not None:
            raise CorruptDataError(
                f"{url}: {self._describe_row(url, first + overflow)}: {texts[overflow].as_py()!r} in column "
                f"{field.name!r} exceeds the range of 32-bit floats",
                action=f"correct it, or keep the column as it is written: --column {field.name}=text",
            )
        return converted

    def _reject_leading_zeros(self, texts: pa.Array, field: pa.Field, *, url: str, first: int) -> None:
        found = _first(_compute().match_substring_regex(texts, _CODE))
        if found is not None:
            raise CorruptDataError(
                f"{url}: {self._describe_row(url, first + found)}: {texts[found].as_py()!r} in column {field.name!r} "
                "begins with 0, which a number would drop, and the column's first rows look like numbers",
                action=f"say what it is: --column {field.name}=text, int or float",
            )

    def _describe_row(self, url: str, row: int) -> str:
        """Reads the file again to find the line of a row, because values may span lines and empty lines do not count.

        If a value is too long for Python's reader, returns the number of the row instead.
        """
        bucket_url, key = split_url(url)
        num_records = 0
        begins = 1
        with (
            open_bucket(bucket_url).open(key) as file,
            io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace", newline="") as lines,
        ):
            reader = python_csv.reader(lines, delimiter=self.delimiter)
            try:
                for record in reader:
                    if record and num_records == row + 1:
                        return f"line {begins}"
                    num_records += bool(record)
                    begins = reader.line_num + 1
            except python_csv.Error:  # a value is too long for Python's reader
                pass
        return f"row {row + 1} after the line of names"

    def _missing_value_advice(self, name: str) -> str:
        return f"fill it, or read the column as floats: --column {name}=float"

    @contextmanager
    def _open(self, url: str, *, types: Mapping[str, pa.DataType]) -> Generator[csv.CSVStreamingReader]:
        import pyarrow as pa
        from pyarrow import csv

        uneven: list[csv.InvalidRow] = []

        def refuse(row: csv.InvalidRow) -> str:
            uneven.append(row)
            return "error"

        bucket_url, key = split_url(url)
        try:
            with (
                open_bucket(bucket_url).open(key) as file,
                csv.open_csv(
                    pa.PythonFile(file, mode="r"),
                    # Only with one thread does pyarrow count the rows, so that its errors have row numbers.
                    read_options=csv.ReadOptions(block_size=BLOCK_BYTES, use_threads=False),
                    parse_options=csv.ParseOptions(
                        delimiter=self.delimiter, newlines_in_values=True, invalid_row_handler=refuse
                    ),
                    convert_options=csv.ConvertOptions(column_types=types),
                ) as reader,
            ):
                yield reader
        except pa.ArrowInvalid as error:
            raise self._damaged(url, str(error), uneven) from None

    def _damaged(self, url: str, reason: str, uneven: Sequence[csv.InvalidRow]) -> CorruptDataError:
        """Returns the error for data that pyarrow cannot read, with the line of the file."""
        if uneven and uneven[0].number is not None:
            row = uneven[0]
            return CorruptDataError(
                f"{url}: {self._describe_row(url, row.number - _HEAD_ROWS)} has "
                f"{counted(row.actual_columns, 'value')}, and the first line {counted(row.expected_columns, 'column')}",
                received=row.text,
                action=f"correct it; or, if {display_name(self.delimiter)} is not the delimiter: --delimiter",
            )
        found = _ROW.search(reason)
        if found is None:
            return CorruptDataError(f"{url}: {reason}")
        return CorruptDataError(
            f"{url}: {self._describe_row(url, int(found[2]) - _HEAD_ROWS)}: column {int(found[1]) + 1}: {found[3]}",
            action="write the file in UTF-8",
        )


def _stripped(values: pa.Array) -> pa.Array:
    """Returns texts without surrounding whitespace, and null for those that pyarrow treats as missing values."""
    import pyarrow as pa
    from pyarrow import csv

    compute = _compute()
    texts = compute.ascii_trim_whitespace(values)
    missing = compute.is_in(texts, value_set=pa.array(csv.ConvertOptions().null_values))
    return compute.if_else(missing, pa.scalar(None, pa.string()), texts)


def _numbers(texts: pa.Array, kind: pa.DataType) -> tuple[pa.Array, int | None]:
    """Returns the texts as numbers, and the position of the first text that is not a number, or None."""
    import pyarrow as pa

    try:
        return texts.cast(kind), None
    except pa.ArrowInvalid:
        return texts, next(number for number in range(len(texts)) if not _is_number(texts[number], kind))


def _first_float32_overflow(texts: pa.Array, numbers: pa.Array) -> int | None:
    """Returns the position of the first finite number that becomes infinite as float32, or None."""
    values = numbers.fill_null(0.0).to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        is_infinite = np.isinf(values.astype(np.float32))
    if not is_infinite.any():
        return None
    is_written = _compute().match_substring_regex(texts, _INFINITY).fill_null(True).to_numpy(zero_copy_only=False)
    found = np.flatnonzero(is_infinite & ~is_written)
    return int(found[0]) if len(found) else None


def _is_number(text: pa.Scalar[Any], kind: pa.DataType) -> bool:
    import pyarrow as pa

    try:
        text.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def _booleans(texts: pa.Array) -> tuple[pa.Array, int | None]:
    """Returns the texts as booleans, and the position of the first text that is not a boolean, or None."""
    import pyarrow as pa
    from pyarrow import csv

    compute = _compute()
    options = csv.ConvertOptions()
    true = compute.is_in(texts, value_set=pa.array(options.true_values))
    false = compute.is_in(texts, value_set=pa.array(options.false_values))
    is_null = texts.is_null()
    bad = _first(compute.invert(compute.or_(compute.or_(true, false), is_null)))
    return compute.if_else(is_null, pa.scalar(None, pa.bool_()), true), bad


def _compute() -> Any:
    """Returns pyarrow's compute module, untyped: its functions are created at import, so type checkers lack them."""
    from pyarrow import compute  # an extra

    return compute


def _first(marks: pa.Array) -> int | None:
    """Returns the position of the first True, or None."""
    found = np.flatnonzero(marks.fill_null(False).to_numpy(zero_copy_only=False))
    return int(found[0]) if len(found) else None


def _size_bytes(url: str) -> int:
    bucket_url, key = split_url(url)
    return open_bucket(bucket_url).size_bytes(key)
