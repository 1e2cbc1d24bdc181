"""Writes records into shards on the local disk, and yields each shard when it is complete."""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, final

import google_crc32c
import numpy as np

from lockstep.data.files.record_index import MIN_INDEXED_BYTES, RecordIndex
from lockstep.data.packing.encoding import Encoded
from lockstep.data.packing.manifest import Skipped
from lockstep.data.packing.options import Compression
from lockstep.data.packing.plan import ShardPlan
from lockstep.errors import StorageWriteError

_LEVEL: Final = 6
_WINDOW_BITS: Final = {"GZIP": 31, "ZLIB": 15}


@final
@dataclass(frozen=True, kw_only=True)
class FinishedShard:
    """A complete shard.

    Attributes:
        split: the split's name.
        index: the number of the shard within the split, from 0.
        num_records: the number of records in the shard.
        size_bytes: the length of the file in bytes.
        crc32c: the CRC-32C of the whole file, as 8 hexadecimal digits.
        has_index: whether there is a record index beside the shard.
        last_position: the position of the shard's last item in the packing order, from 0.
        skipped: the damaged items that would have been in the shard.
    """

    split: str
    index: int
    num_records: int
    size_bytes: int
    crc32c: str
    has_index: bool
    last_position: int
    skipped: tuple[Skipped, ...]


@final
@dataclass(frozen=True, kw_only=True)
class LocalShard:
    """A finished shard on the local disk, before its upload.

    Attributes:
        shard: the description of the shard.
        path: the path of the shard's file.
        record_index: the bytes of the shard's record index; None if it has none.
    """

    shard: FinishedShard
    path: Path
    record_index: bytes | None


@final
class SplitWriter:
    """Writes the records of one split, shard after shard.

    Args:
        split: the split's name.
        plan: the division of the split into shards.
        compression: the compression of each shard; None for none.
        folder: the folder for the files.
        next_index: the number of the first shard to make. The shards before it are finished.
    """

    def __init__(
        self, split: str, *, plan: ShardPlan, compression: Compression | None, folder: Path, next_index: int
    ) -> None:
        self._split = split
        self._plan = plan
        self._compression: Compression | None = compression
        self._folder = folder
        self._index = next_index
        self._file: _ShardFile | None = None

    def add(self, encoded: Encoded) -> Iterator[LocalShard]:
        """Writes a record, or adds a damaged item to the shard's skipped items.

        Yields:
            A finished shard, if the record did not fit into the current shard or has filled it.
        """
        limit = self._plan.bytes_per_shard
        length = len(encoded.framed or b"")
        file = self._file
        if file is not None and limit is not None and file.framed_bytes and file.framed_bytes + length > limit:
            yield self._finish(file)
        if self._file is None:
            path = self._folder / f"{self._split}-{self._index:05d}"
            self._file = _ShardFile(path, compression=self._compression)
        self._file.add(encoded)
        if self._file.num_items >= self._plan.num_items_in(self._index):
            yield self._finish(self._file)

    def end(self) -> Iterator[LocalShard]:
        """Yields the last shard, if one has been begun."""
        if self._file is not None:
            yield self._finish(self._file)

    def abandon(self) -> None:
        """Closes the unfinished file, without finishing the shard."""
        if self._file is not None:
            self._file.abandon()

    def _finish(self, file: _ShardFile) -> LocalShard:
        file.close()
        # Records of a compressed file cannot be read by position, and small files are read as a whole.
        has_index = self._compression is None and file.size_bytes >= MIN_INDEXED_BYTES
        shard = FinishedShard(
            split=self._split,
            index=self._index,
            num_records=len(file.lengths),
            size_bytes=file.size_bytes,
            crc32c=f"{file.crc:08x}",
            has_index=has_index,
            last_position=file.last_position,
            skipped=tuple(file.skipped),
        )
        index = RecordIndex(lengths=np.array(file.lengths, np.int64)).to_bytes() if has_index else None
        self._file = None
        self._index += 1
        return LocalShard(shard=shard, path=file.path, record_index=index)


@final
class _ShardFile:
    """A shard that is being written."""

    def __init__(self, path: Path, *, compression: Compression | None) -> None:
        self.path = path
        self.lengths: list[int] = []
        self.skipped: list[Skipped] = []
        self.num_items = 0
        self.framed_bytes = 0
        self.size_bytes = 0
        self.crc = 0
        self.last_position = -1
        self._compressor = None if compression is None else zlib.compressobj(_LEVEL, wbits=_WINDOW_BITS[compression])
        with self._naming_failures():
            self._file: BinaryIO = open(path, "wb")  # noqa: SIM115 - open until the shard is complete

    def add(self, encoded: Encoded) -> None:
        self.num_items += 1
        self.last_position = encoded.packing_item.position
        if encoded.framed is None:
            self.skipped.append(Skipped(key=encoded.packing_item.item.key, reason=encoded.reason))
            return
        self.lengths.append(encoded.data_bytes)
        self.framed_bytes += len(encoded.framed)
        self._write(encoded.framed if self._compressor is None else self._compressor.compress(encoded.framed))

    def close(self) -> None:
        if self._file.closed:
            return
        if self._compressor is not None:
            self._write(self._compressor.flush())
        with self._naming_failures():
            self._file.close()

    def abandon(self) -> None:
        with suppress(OSError):  # the file is discarded
            self._file.close()

    @contextmanager
    def _naming_failures(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            raise StorageWriteError(
                f"cannot write the temporary file {self.path}: {error.strerror or error}",
                action="free disk space, or choose a folder on another disk (TMPDIR)",
            ) from error

    def _write(self, data: bytes) -> None:
        with self._naming_failures():
            self._file.write(data)
        self.size_bytes += len(data)
        self.crc = google_crc32c.extend(self.crc, data)
