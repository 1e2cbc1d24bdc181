"""GZIP and ZLIB, by which files of records may be compressed as a whole: how that is told, unpacked and read in order.

`lockstep.data.files.compressed` makes a Grain dataset of it; here nothing needs Grain, whose import takes a while.
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
"""How much of a file's beginning tells how it is compressed."""

MAX_RECORD_BYTES: Final = (1 << 31) - 1
"""The longest message that protocol buffers read. A compressed file's own length says nothing of its records'."""

WINDOW_BITS: Final = {"GZIP": 16 + zlib.MAX_WBITS, "ZLIB": zlib.MAX_WBITS}
"""What zlib knows each of them by."""

_GZIP_MAGIC: Final = b"\x1f\x8b\x08"
_READ_BYTES: Final = 1 << 18
_UNPACKED_BYTES: Final = 1 << 18
_SUFFIXES: Final = (".gz", ".gzip", ".zlib", ".zz")


def compression_of(head: bytes) -> Compression | None:
    """Says how a file of records is compressed; None for one that is not.

    A file of records that is not compressed begins with a record's length and the checksum of that length: where they
    match, it is one, whatever its first bytes look like. (A compressed file's would match once in 2**32.) Otherwise the
    marks of the formats count: GZIP's has three bytes. ZLIB's has but two, of which one in a thousand is good, so what
    looks so has to unpack, too: else it is left to be named as a damaged file of records.

    Args:
        head: the file's first `HEAD_BYTES`; fewer of a shorter file.
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
    """Looks at a file's beginning and says how it is compressed; None for a file of records that is not.

    Raises:
        MissingInputError: there is no such file.
        StorageError: it could not be read.
    """
    bucket_url, key = split_url(url)
    return compression_of(open_bucket(bucket_url).read(key, end_byte=HEAD_BYTES))


def read_compressed(url: str, *, compression: Compression | None = None) -> Iterator[bytes]:
    """Reads the records of a file one after the other, unpacking it bit by bit, and checks both checksums of each.

    Args:
        url: the file's URL.
        compression: how it is compressed; None takes it from the file's beginning (`compression_of`), which may also be
            not at all.

    Raises:
        MissingInputError: there is no such file.
        CorruptDataError: the file is cut off or damaged, a record fails a check, or it is an ArrayRecord file. Records
            before the damage are read. The place is counted in unpacked bytes.
    """
    bucket_url, key = split_url(url)
    number = 0
    with open_bucket(bucket_url).open(key) as file:
        if compression is None:
            head = read_fully(file, HEAD_BYTES)
            if is_array_record(head):
                raise CorruptDataError(
                    f"{url}: it is an ArrayRecord file, and was to be read as a TFRecord file, compressed or not",
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
    """What gives bytes in order."""

    def read(self, num_bytes: int, /) -> bytes:
        """Returns so many bytes or fewer; none at the end alone."""
        ...


@final
class Unpacking(io.RawIOBase):
    """What a compressed file unpacks to. Where it is damaged it ends, and `failure` says why.

    Args:
        file: the file, at its beginning.
        compression: how it is compressed.
    """

    def __init__(self, file: Readable, *, compression: Compression) -> None:
        super().__init__()
        self._file = file
        self._compression = compression
        self._unpacker = zlib.decompressobj(WINDOW_BITS[compression])
        self._packed = b""
        self._left = b""  # of a part that was unpacked byte by byte
        self.failure: str | None = None

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Fills a buffer, or a part of it; none of it at the end, or where it is damaged."""
        unpacked = self._unpack(len(buffer))
        buffer[: len(unpacked)] = unpacked
        return len(unpacked)

    def _unpack(self, num_bytes: int) -> bytes:
        """Returns as many bytes or fewer; none at the end, or where it is damaged."""
        while self.failure is None and not self._left:
            if self._unpacker.eof and not self._go_on():
                return b""
            if not self._packed:
                self._packed = self._file.read(_READ_BYTES)
            packed, before = self._packed, self._unpacker.copy()
            try:
                # Without new bytes it may still give what it holds back.
                unpacked = self._unpacker.decompress(packed, num_bytes)
                self._packed = self._unpacker.unconsumed_tail
            except zlib.error:
                self._left = self._up_to_damage(before, packed)
                self.failure = f"the file is damaged, or not {self._compression}: it does not unpack any further"
                break
            if unpacked:
                return unpacked
            if not packed and not self._unpacker.eof:
                self.failure = f"the file is cut off: its {self._compression} stream does not end"
        given, self._left = self._left[:num_bytes], self._left[num_bytes:]
        return given

    def _go_on(self) -> bool:
        """Begins the next stream behind one that has ended, as ``cat a.gz b.gz`` writes them; False at the end."""
        behind = self._unpacker.unused_data or self._file.read(_READ_BYTES)
        if not behind:
            return False
        if self._compression == "GZIP" and behind[:1] == _GZIP_MAGIC[:1]:
            self._unpacker = zlib.decompressobj(WINDOW_BITS[self._compression])
            self._packed = behind
            return True
        self.failure = f"something else lies behind the end of the {self._compression} stream"
        return False

    @staticmethod
    def _up_to_damage(unpacker: Any, packed: bytes) -> bytes:
        """Unpacks again what raised, byte by byte, for what comes before the damage."""
        parts: list[bytes] = []
        try:
            for place in range(len(packed)):
                parts.append(unpacker.decompress(packed[place : place + 1]))
        except zlib.error:
            return b"".join(parts)
        return b"".join(parts)


def without_suffix(url: str) -> str:
    """Returns the name that a file would have if it was not compressed."""
    for suffix in _SUFFIXES:
        url = url.removesuffix(suffix)
    return url
