"""Detects GZIP and ZLIB compression of record files, and reads the records of compressed files in order.

`lockstep.data.files.compressed` makes a Grain dataset of compressed files. This module does not import Grain, whose
import is slow.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from typing import Any, Final, Literal, Protocol, final

from lockstep.data.files.array_record import is_array_record
from lockstep.data.files.framing import (
    FOOTER_BYTES,
    HEADER_BYTES,
    checked_data,
    fail_at,
    is_header,
    read_fully,
    record_length,
)
from lockstep.data.files.shards import ShardName
from lockstep.errors import CorruptDataError
from lockstep.storage import open_bucket, split_url

Compression = Literal["GZIP", "ZLIB"]

HEAD_BYTES: Final = 4096
"""The number of bytes at a file's beginning from which its compression is detected."""

MAX_RECORD_BYTES: Final = (1 << 31) - 1
"""The longest message that protocol buffers can parse. It bounds the records of compressed files, whose own length does
not."""

WINDOW_BITS: Final = {"GZIP": 16 + zlib.MAX_WBITS, "ZLIB": zlib.MAX_WBITS}
"""The ``wbits`` argument of zlib for each compression."""

_GZIP_MAGIC: Final = b"\x1f\x8b\x08"
_READ_BYTES: Final = 1 << 18
_UNPACKED_BYTES: Final = 1 << 18
_SUFFIXES: Final = (".gz", ".gzip", ".zlib", ".zz")


def compression_of(head: bytes) -> Compression | None:
    """Returns the compression of a record file; None if it is not compressed.

    An uncompressed record file begins with a record's length and the checksum of that length. If they match, the file
    counts as uncompressed, whatever its first bytes are. (In a compressed file they match once in 2**32.) Otherwise the
    magic bytes of the formats decide. GZIP has three of them. ZLIB has only a two-byte header, which one in a thousand
    random pairs of bytes satisfies, so the file must also decompress. A file that does not counts as an uncompressed
    file, which is then reported as damaged.

    Args:
        head: the file's first `HEAD_BYTES` bytes, or the whole file if it is shorter.
    """
    if is_header(head[:HEADER_BYTES]):
        return None
    if head.startswith(_GZIP_MAGIC):
        return "GZIP"
    if len(head) < 2 or head[0] & 0x0F != zlib.DEFLATED or head[0] >> 4 > 7 or int.from_bytes(head[:2], "big") % 31:
        return None
    try:
        unpacked = zlib.decompressobj(WINDOW_BITS["ZLIB"]).decompress(head, HEADER_BYTES)
    except zlib.error:
        return None
    return "ZLIB" if len(unpacked) < HEADER_BYTES or is_header(unpacked) else None


def find_compression(url: str) -> Compression | None:
    """Reads a file's beginning, and returns the file's compression; None if it is not compressed.

    Raises:
        MissingInputError: the file does not exist.
        StorageError: the file could not be read.
    """
    bucket_url, key = split_url(url)
    return compression_of(open_bucket(bucket_url).read(key, end_byte=HEAD_BYTES))


def read_compressed(url: str, *, compression: Compression | None = None) -> Iterator[bytes]:
    """Reads the records of a file in order, decompressing it piece by piece, and verifies both checksums of each one.

    Args:
        url: the file's URL.
        compression: the file's compression; None detects it from the file's beginning (`compression_of`), and also
            reads uncompressed files.

    Raises:
        MissingInputError: the file does not exist.
        CorruptDataError: the file is cut off or damaged, a checksum does not match, the number of records differs from
            the one in the file's name, or it is an ArrayRecord file. Records before the damage are yielded first. The
            message gives the offset in decompressed bytes.
    """
    bucket_url, key = split_url(url)
    number = 0
    with open_bucket(bucket_url).open(key) as file:
        if compression is None:
            head = read_fully(file, HEAD_BYTES)
            if is_array_record(head):
                raise CorruptDataError(
                    f"{url}: it is an ArrayRecord file, not a TFRecord file",
                    action="name files of one kind; lockstep.data.ArrayRecordSource reads this one",
                )
            compression = compression_of(head)
            file.seek(0)
        unpacking = None if compression is None else Unpacking(file, compression=compression)
        unpacked = file if unpacking is None else io.BufferedReader(unpacking, _UNPACKED_BYTES)
        where = url if unpacking is None else f"{url}, unpacked"
        offset = 0
        while True:
            header = read_fully(unpacked, HEADER_BYTES)
            if unpacking is not None and unpacking.failure is not None and len(header) < HEADER_BYTES:
                fail_at(where, number, offset, unpacking.failure)
            if not header:
                break
            length = record_length(header, url=where, number=number, offset=offset)
            if unpacking is not None and length > MAX_RECORD_BYTES:
                fail_at(where, number, offset, f"it states {length} bytes, more than a message can have")
            body = read_fully(unpacked, length + FOOTER_BYTES)
            if unpacking is not None and unpacking.failure is not None and len(body) < length + FOOTER_BYTES:
                fail_at(where, number, offset, unpacking.failure)
            yield checked_data(body, length=length, url=where, number=number, offset=offset)
            offset += HEADER_BYTES + length + FOOTER_BYTES
            number += 1
    stated = ShardName.parse(without_suffix(url))
    if stated is not None and stated.num_records not in (None, number):
        raise CorruptDataError(
            f"{url}: {number} records found, {stated.num_records} stated in the file's name",
            action="copy the file again from its source, or pack it again",
        )


class Readable(Protocol):
    """A source of bytes in order, such as an open file."""

    def read(self, num_bytes: int, /) -> bytes:
        """Returns up to ``num_bytes`` bytes; b"" only at the end."""
        ...


@final
class Unpacking(io.RawIOBase):
    """The decompressed contents of a file, as a raw stream. At damage the stream ends, and `failure` has the reason.

    Args:
        file: the compressed file, positioned at its beginning.
        compression: the file's compression.
    """

    def __init__(self, file: Readable, *, compression: Compression) -> None:
        super().__init__()
        self._file = file
        self._compression = compression
        self._unpacker = zlib.decompressobj(WINDOW_BITS[compression])
        self._packed = b""
        self._pending = b""  # decompressed bytes before the damage that have not been returned yet
        self.failure: str | None = None

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Fills a buffer at least partly, and returns the number of bytes; 0 at the end or at damage."""
        unpacked = self._unpack(len(buffer))
        buffer[: len(unpacked)] = unpacked
        return len(unpacked)

    def _unpack(self, num_bytes: int) -> bytes:
        """Returns up to ``num_bytes`` decompressed bytes; b"" at the end or at damage."""
        while self.failure is None and not self._pending:
            if self._unpacker.eof and not self._begin_next_stream():
                return b""
            if not self._packed:
                self._packed = self._file.read(_READ_BYTES)
            packed, before = self._packed, self._unpacker.copy()
            try:
                # Without new input, the decompressor may still return output that it has buffered.
                unpacked = self._unpacker.decompress(packed, num_bytes)
                self._packed = self._unpacker.unconsumed_tail
            except zlib.error:
                self._pending = self._up_to_damage(before, packed)
                self.failure = f"the file is damaged, or not {self._compression}: decompression failed"
                break
            if unpacked:
                return unpacked
            if not packed and not self._unpacker.eof:
                self.failure = f"the file is cut off: its {self._compression} stream does not end"
        given, self._pending = self._pending[:num_bytes], self._pending[num_bytes:]
        return given

    def _begin_next_stream(self) -> bool:
        """Begins the next stream after one that has ended, as in a file from ``cat a.gz b.gz``; False at the end."""
        behind = self._unpacker.unused_data or self._file.read(_READ_BYTES)
        if not behind:
            return False
        if self._compression == "GZIP" and behind[:1] == _GZIP_MAGIC[:1]:
            self._unpacker = zlib.decompressobj(WINDOW_BITS[self._compression])
            self._packed = behind
            return True
        self.failure = f"unexpected data after the end of the {self._compression} stream"
        return False

    @staticmethod
    def _up_to_damage(unpacker: Any, packed: bytes) -> bytes:
        """Decompresses a damaged piece again, byte by byte, and returns the output before the damage."""
        parts: list[bytes] = []
        try:
            for place in range(len(packed)):
                parts.append(unpacker.decompress(packed[place : place + 1]))
        except zlib.error:
            return b"".join(parts)
        return b"".join(parts)


def without_suffix(url: str) -> str:
    """Returns a file's URL or name without the suffix of its compression, such as ``.gz``."""
    for suffix in _SUFFIXES:
        url = url.removesuffix(suffix)
    return url
