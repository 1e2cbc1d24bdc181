"""Indexes: the length of each record of a file, stored so that the file is scanned only once.

The index of ``x.tfrec`` is ``x.tfrec.index`` beside it, or a file in the home's cache if the bucket cannot be written.
Each time an index is loaded, it is compared with the file: the file's length, and the frames of a few records. Small
files have no index, because reading them whole costs no more.
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
"""The length, in bytes, from which a file gets an index."""

_MAGIC: Final = b"lockstep index 1\n"
_HEAD: Final = struct.Struct("<QQI")
_NUM_CHECKED: Final = 4

ReadRange = Callable[[int, int], bytes]
"""Returns the bytes [start, end) of a file."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class RecordIndex:
    """The lengths of a file's records.

    Attributes:
        lengths: the lengths of the records' data, in bytes, int64 of shape (num_records,).
    """

    lengths: np.ndarray

    @property
    def offsets(self) -> np.ndarray:
        """The offsets of the records' data in the file, in bytes, int64 of shape (num_records,)."""
        frames = self.lengths + (HEADER_BYTES + FOOTER_BYTES)
        return np.cumsum(frames) - frames + HEADER_BYTES

    @property
    def size_bytes(self) -> int:
        """The length of a file with these records, in bytes."""
        return int(self.lengths.sum()) + len(self.lengths) * (HEADER_BYTES + FOOTER_BYTES)

    def to_bytes(self) -> bytes:
        """Serializes the index: a header, and the lengths as 64-bit integers, compressed with zlib."""
        packed = zlib.compress(self.lengths.astype("<i8").tobytes(), 6)
        return _MAGIC + _HEAD.pack(self.size_bytes, len(self.lengths), google_crc32c.value(packed)) + packed

    @classmethod
    def from_bytes(cls, data: bytes, *, size_bytes: int) -> RecordIndex | None:
        """Parses an index; None if it is damaged, has another version, or belongs to a file of another length.

        Args:
            data: the bytes of the index, which are not trusted.
            size_bytes: the length of the record file. It limits the number of records, and so the bytes to decompress.
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
        """Whether the index matches a file, judged by the frames of a few records.

        Args:
            read: the function that reads from the record file.
            url: the record file's URL.
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
    """Returns the index of a file. If no valid index is stored, scans the file and stores the new index if possible.

    Args:
        bucket: the bucket of the record file.
        key: the record file's key.
        size_bytes: the record file's length in bytes.
        read: the function that reads from the record file.
        scan: the function that scans the record file and returns the lengths of its records, int64 of shape
            (num_records,).

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
        with suppress(MissingInputError, StorageError):  # the file is scanned instead
            index = RecordIndex.from_bytes(where.read(name), size_bytes=size_bytes)
            if index is not None and index.fits(read, url=url):
                return index
    index = RecordIndex(lengths=scan())
    for where, name in places:
        with suppress(StorageError):  # without a stored index, the next start scans the file again
            where.write(name, index.to_bytes())
            break
    return index
