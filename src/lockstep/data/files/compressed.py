"""Files of records that are compressed as a whole, as TensorFlow's ``TFRecordOptions`` writes them: GZIP and ZLIB.

Such a file can be read from its beginning alone. So there is no record by number, no order over all records, no
sharding by record; and who goes on in the midst of a file unpacks it again up to there.
"""

from __future__ import annotations

import io
import os
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, Final, Literal, final

import grain

from lockstep.data.files.framing import (
    FOOTER_BYTES,
    HEADER_BYTES,
    checked_data,
    fail_at,
    is_header,
    read_fully,
    record_length,
)
from lockstep.data.files.shards import ShardName, check_complete, find_shards
from lockstep.errors import CorruptDataError, InvalidInputError
from lockstep.storage import open_bucket, split_url

Compression = Literal["GZIP", "ZLIB"]

HEAD_BYTES: Final = 4096
"""How much of a file's beginning tells how it is compressed."""

MAX_RECORD_BYTES: Final = (1 << 31) - 1
"""The longest message that protocol buffers read. A compressed file's own length says nothing of its records'."""

_WINDOW_BITS: Final = {"GZIP": 16 + zlib.MAX_WBITS, "ZLIB": zlib.MAX_WBITS}
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
        unpacked = zlib.decompressobj(_WINDOW_BITS["ZLIB"]).decompress(head, HEADER_BYTES)
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
        CorruptDataError: the file is cut off or damaged, or a record fails a check. Records before it are read. The
            place is counted in unpacked bytes.
    """
    bucket_url, key = split_url(url)
    number = 0
    with open_bucket(bucket_url).open(key) as file:
        if compression is None:
            compression = compression_of(read_fully(file, HEAD_BYTES))
            file.seek(0)
        unpacking = None if compression is None else _Unpacking(file, compression=compression)
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
    stated = ShardName.parse(_without_suffix(url))
    if stated is not None and stated.num_records not in (None, number):
        raise CorruptDataError(
            f"{url}: {number} records found, {stated.num_records} stated in the file's name",
            action="copy the file again from its source, or pack it again",
        )


@final
class _Unpacking(io.RawIOBase):
    """What a compressed file unpacks to. Where it is damaged it ends, and `failure` says why.

    Args:
        file: the file, at its beginning.
        compression: how it is compressed.
    """

    def __init__(self, file: BinaryIO, *, compression: Compression) -> None:
        super().__init__()
        self._file = file
        self._compression = compression
        self._unpacker = zlib.decompressobj(_WINDOW_BITS[compression])
        self._packed = b""
        self._left = b""  # of a part that was unpacked byte by byte
        self.failure: str | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
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
            self._unpacker = zlib.decompressobj(_WINDOW_BITS[self._compression])
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


@final
class CompressedRecords(grain.IterDataset):
    """The records of compressed files in order: a Grain dataset of bytes, to which Grain's transformations apply.

    With a ``cycle_length`` of n it takes records from n files in turn, one of each; when a file ends, the next one
    takes its place. So the order is a function of the files alone. An iterator's state says how many records of which
    files it has read; one that is set unpacks those files again up to there.

    It may be pickled. Grain's ``mp_prefetch`` gives each worker files of its own.

    Args:
        urls: a pattern (see `lockstep.storage.glob_urls`), of which each shard has to be there; or the URLs of files.
            They are read in sorted order (of a pattern) or in the order given.
        compression: how all files are compressed; None takes it from each file's beginning.
        cycle_length: from how many files records are taken in turn.

    Raises:
        MissingInputError: nothing was found, or a shard is missing.
        CorruptDataError: a shard is there twice, or under two numbers of shards.
        InvalidInputError: an argument is out of its range.
    """

    def __init__(
        self,
        urls: str | os.PathLike[str] | Sequence[str],
        *,
        compression: Compression | None = None,
        cycle_length: int = 1,
    ) -> None:
        super().__init__()
        if compression not in (None, *_WINDOW_BITS):
            raise InvalidInputError("a compression of files", received=compression, allowed=("GZIP", "ZLIB", "None"))
        if cycle_length < 1:
            raise InvalidInputError("cycle_length", received=cycle_length, allowed="1 or more")
        self._urls = tuple(find_shards(urls))
        if isinstance(urls, str | os.PathLike):
            pattern = os.fspath(urls)
            check_complete(map(_without_suffix, self._urls), what=pattern.rsplit("/", 1)[-1])
        self._compression: Compression | None = compression
        self._cycle_length = cycle_length

    @property
    def urls(self) -> tuple[str, ...]:
        """The files, in their order."""
        return self._urls

    @property
    def num_files(self) -> int:
        """How many files there are."""
        return len(self._urls)

    def take_files(self, files: Sequence[int]) -> CompressedRecords:
        """Returns the records of some of the files: what one of several workers reads.

        Args:
            files: their numbers, from 0.
        """
        urls = [self._urls[file] for file in files]
        return CompressedRecords(urls, compression=self._compression, cycle_length=self._cycle_length)

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:  # noqa: FBT001 - Grain's protocol
        """Leaves every n-th file, for a worker of Grain's ``mp_prefetch``, in place."""
        self._urls = self._urls[sl]

    def __iter__(self) -> grain.DatasetIterator:
        """Returns an iterator over all records."""
        return _CompressedIterator(self._urls, compression=self._compression, cycle_length=self._cycle_length)

    def __str__(self) -> str:
        """Says the number of files; Grain shows it."""
        return f"CompressedRecords({len(self._urls)} files)"


@final
class _OpenFile:
    """A file that is being read, from some record on.

    Args:
        file: its number.
        url: where it is.
        num_read: how many of its records were read before.
        compression: how it is compressed.
    """

    def __init__(self, file: int, url: str, *, num_read: int, compression: Compression | None) -> None:
        self.file = file
        self.num_read = num_read
        self._url = url
        self._compression: Compression | None = compression
        self._records: Iterator[bytes] | None = None

    def read(self) -> bytes | None:
        """Returns the next record; None at the end."""
        if self._records is None:
            self._records = read_compressed(self._url, compression=self._compression)
            for number in range(self.num_read):
                if next(self._records, None) is None:
                    raise CorruptDataError(
                        f"{self._url}: {number} records found, {self.num_read} were read of it before",
                        action="the file is another one: begin anew, or put the one back that was there",
                    )
        record = next(self._records, None)
        self.num_read += record is not None
        return record

    def close(self) -> None:
        if self._records is not None:
            self._records.close()  # type: ignore[attr-defined] # a generator, whose file is open
        self._records = None


@final
class _CompressedIterator(grain.DatasetIterator):
    """The records that are left."""

    def __init__(self, urls: tuple[str, ...], *, compression: Compression | None, cycle_length: int) -> None:
        super().__init__()
        self._urls = urls
        self._compression: Compression | None = compression
        self._cycle_length = cycle_length
        self._next_file = 0
        self._open: deque[_OpenFile] = deque()
        """Files that are open, the one whose turn it is first."""

    def __next__(self) -> bytes:
        self._assert_not_closed()
        while True:
            if len(self._open) < self._cycle_length and self._next_file < len(self._urls):
                self._open.append(self._open_file(self._next_file))
                self._next_file += 1
                continue
            if not self._open:
                raise StopIteration
            file = self._open[0]
            try:
                record = file.read()
            except BaseException:
                file.close()  # after an error the same record is next
                raise
            if record is not None:
                self._open.rotate(-1)
                return record
            self._open.popleft()
            if self._next_file < len(self._urls):
                self._open.appendleft(self._open_file(self._next_file))
                self._next_file += 1

    def _open_file(self, file: int, *, num_read: int = 0) -> _OpenFile:
        return _OpenFile(file, self._urls[file], num_read=num_read, compression=self._compression)

    def get_state(self) -> dict[str, Any]:
        return {
            "num_files": len(self._urls),
            "next_file": self._next_file,
            "open": [[file.file, file.num_read] for file in self._open],
        }

    def set_state(self, state: dict[str, Any]) -> None:
        is_open = [(int(file), int(num_read)) for file, num_read in state["open"]]
        if state["num_files"] != len(self._urls) or len(is_open) > self._cycle_length:
            raise InvalidInputError(
                "the state of an iteration over compressed files is of others",
                received=f"{state['num_files']} files, {len(is_open)} of them open",
                allowed=f"{len(self._urls)} files, at most {self._cycle_length} open",
                action="read the same files with the same cycle_length, or begin anew",
            )
        self._close_files()
        self._next_file = int(state["next_file"])
        self._open.extend(self._open_file(file, num_read=num_read) for file, num_read in is_open)

    def _close_files(self) -> None:
        for file in self._open:
            file.close()
        self._open.clear()

    def close(self) -> None:
        if not self._closed:
            self._close_files()
        super().close()

    def __str__(self) -> str:
        return f"CompressedRecords({len(self._urls)} files)"


def _without_suffix(url: str) -> str:
    """Returns the name that a file would have if it was not compressed."""
    for suffix in _SUFFIXES:
        url = url.removesuffix(suffix)
    return url
