"""Indexes: how long each record of a file is, kept so that the file has to be gone through once alone.

The index of ``x.tfrec`` is ``x.tfrec.index`` beside it; where the bucket cannot be written it is kept in the home's
cache. It is checked against the file whenever it is taken: the file's length, and the frames of a few records. Small
files have none, since to read them whole costs no more.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, final

import google_crc32c
import numpy as np

from lockstep.data.files.framing import FOOTER_BYTES, HEADER_BYTES, record_length
from lockstep.errors import CorruptDataError, MissingInputError, StorageError
from lockstep.home import Home
from lockstep.storage import AbstractBucket, open_bucket

SUFFIX: Final = ".index"
MIN_INDEXED_BYTES: Final = 1 << 20
"""Length of a file from which on it gets an index."""

_MAGIC: Final = b"lockstep index 1\n"
_HEAD: Final = struct.Struct("<QQI")
_NUM_CHECKED: Final = 4

ReadRange = Callable[[int, int], bytes]
"""Returns the bytes [start, end) of a file."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class RecordIndex:
    """How long the records of a file are.

    Attributes:
        lengths: of the records' data in bytes, int64 of shape (num_records,).
    """

    lengths: np.ndarray

    @property
    def offsets(self) -> np.ndarray:
        """Where the records' data begins in the file, int64 of shape (num_records,)."""
        frames = self.lengths + (HEADER_BYTES + FOOTER_BYTES)
        return np.cumsum(frames) - frames + HEADER_BYTES

    @property
    def size_bytes(self) -> int:
        """How long a file of these records is."""
        return int(self.lengths.sum()) + len(self.lengths) * (HEADER_BYTES + FOOTER_BYTES)

    def to_bytes(self) -> bytes:
        """Returns the index's file: a head, and the lengths as 64-bit numbers, compressed by zlib."""
        packed = zlib.compress(self.lengths.astype("<i8").tobytes(), 6)
        return _MAGIC + _HEAD.pack(self.size_bytes, len(self.lengths), google_crc32c.value(packed)) + packed

    @classmethod
    def from_bytes(cls, data: bytes, *, size_bytes: int) -> RecordIndex | None:
        """Reads an index's file; None where it is damaged, of another version, or of a file of another length.

        Args:
            data: the file's bytes, which anybody may have written.
            size_bytes: how long the file of records is; no more is unpacked than it can have records.
        """
        head_end = len(_MAGIC) + _HEAD.size
        if len(data) < head_end or not data.startswith(_MAGIC):
            return None
        stated_bytes, num_records, crc = _HEAD.unpack(data[len(_MAGIC) : head_end])
        packed = data[head_end:]
        if stated_bytes != size_bytes or num_records * (HEADER_BYTES + FOOTER_BYTES) > size_bytes:
            return None
        if google_crc32c.value(packed) != crc:
            return None
        try:
            unpacked = zlib.decompressobj().decompress(packed, 8 * num_records + 1)
        except zlib.error:
            return None
        lengths = np.frombuffer(unpacked[: len(unpacked) // 8 * 8], "<i8").astype(np.int64)
        if len(unpacked) != 8 * num_records or not ((lengths >= 0) & (lengths <= size_bytes)).all():
            return None
        index = cls(lengths=lengths)
        return index if index.size_bytes == size_bytes else None

    def fits(self, read: ReadRange, *, url: str) -> bool:
        """Whether it is the index of a file of its length, as far as a few of the frames tell.

        Args:
            read: reads from the file.
            url: where it is.
        """
        last = len(self.lengths) - 1
        offsets = self.offsets
        try:
            for number in sorted({round(last * part / (_NUM_CHECKED - 1)) for part in range(_NUM_CHECKED)}):
                start = int(offsets[number]) - HEADER_BYTES
                header = read(start, start + HEADER_BYTES)
                if record_length(header, url=url, number=number, offset=start) != self.lengths[number]:
                    return False
        except CorruptDataError:
            return False
        return True


def find_index(
    bucket: AbstractBucket, key: str, *, size_bytes: int, read: ReadRange, scan: Callable[[], np.ndarray]
) -> RecordIndex:
    """Returns the index of a file: the one that is kept, or one that is made now and kept if it can be.

    Args:
        bucket: where the file is.
        key: its name there.
        size_bytes: how long it is.
        read: reads from it.
        scan: goes through it for the lengths of its records.

    Raises:
        CorruptDataError: the file is cut off or damaged.
        StorageError: the file could not be read.
    """
    url = bucket.url_of(key)
    if size_bytes < MIN_INDEXED_BYTES:
        return RecordIndex(lengths=scan())
    cache = open_bucket(Home.from_env().cache / "records")
    places = ((bucket, key + SUFFIX), (cache, hashlib.sha256(url.encode()).hexdigest() + SUFFIX))
    for where, name in places:
        with suppress(MissingInputError, StorageError):  # it is made anew then
            index = RecordIndex.from_bytes(where.read(name), size_bytes=size_bytes)
            if index is not None and index.fits(read, url=url):
                return index
    index = RecordIndex(lengths=scan())
    for where, name in places:
        with suppress(StorageError):  # without one it takes as long again the next time, and that is all
            where.write(name, index.to_bytes())
            break
    return index
