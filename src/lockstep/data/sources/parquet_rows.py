"""The rows of Parquet files, which state the types of their columns."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, final

from lockstep.data.sources.rows import BLOCK_BYTES, AbstractTable
from lockstep.storage import open_bucket, split_url

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import parquet

_MAX_BATCH_ROWS: Final = 4096


@final
class ParquetTable(AbstractTable):
    """The rows of Parquet files, read one row group after the other.

    Args:
        urls: the URLs of the files.
        key: the column whose values are the rows' keys; None uses the rows' numbers.
    """

    @property
    def notices(self) -> tuple[str, ...]:
        """None."""
        return ()

    def _inspect(self) -> tuple[pa.Schema, int, int]:
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
            rows_at_once = BLOCK_BYTES * file.metadata.num_rows // max(size_bytes, 1)
            yield from file.iter_batches(max(1, min(_MAX_BATCH_ROWS, rows_at_once)))

    def _describe_row(self, url: str, row: int) -> str:
        return f"row {row} (counted from 0)"

    def _missing_value_advice(self, name: str) -> str:
        return "fill it"

    @contextmanager
    def _open(self, url: str) -> Generator[parquet.ParquetFile]:
        from pyarrow import parquet

        bucket_url, key = split_url(url)
        with open_bucket(bucket_url).open(key) as file, parquet.ParquetFile(file) as table:
            yield table
