"""Reads the lines of text files in a bucket: whole files, or the lines that begin within a range of bytes."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import Final, cast

from lockstep.data.files.compression import Unpacking
from lockstep.errors import CorruptDataError
from lockstep.storage import AbstractBucket

BLOCK_BYTES: Final = 8 * 2**20
SEARCH_BYTES: Final = 2**16
MAX_LINE_BYTES: Final = 64 * 2**20
"""The longest line that is read, in bytes. For a longer one, None is yielded."""

NEWLINE: Final = b"\n"


def read_lines(bucket: AbstractBucket, key: str, *, start: int, end: int, size_bytes: int) -> Iterator[bytes | None]:
    """Yields the lines that begin within a range of a file's bytes, without their line breaks.

    Ranges that divide a file divide its lines: each line begins in exactly one of them.

    Args:
        bucket: the file's bucket.
        key: the file's key.
        start: the first byte of the range.
        end: one past its last byte.
        size_bytes: the length of the file.

    Raises:
        MissingInputError: the file does not exist.
        CorruptDataError: the file is shorter than its length.
        StorageError: the file could not be read.
    """
    first, last = (_next_line(bucket, key, at=at, size_bytes=size_bytes) for at in (start, end))
    return split_lines(_blocks(bucket, key, start=first, end=last))


def count_lines(bucket: AbstractBucket, key: str, *, before: int, size_bytes: int) -> int:
    """Returns the number of lines that begin before a byte of a file. Reads the file up to there.

    Raises:
        MissingInputError: the file does not exist.
        CorruptDataError: the file is shorter than its length.
        StorageError: the file could not be read.
    """
    first = _next_line(bucket, key, at=before, size_bytes=size_bytes)
    return sum(block.count(NEWLINE) for block in _blocks(bucket, key, start=0, end=first))


def read_compressed_lines(bucket: AbstractBucket, key: str) -> Iterator[bytes | None]:
    """Yields the lines of a file that is compressed with gzip, without their line breaks.

    Raises:
        MissingInputError: the file does not exist.
        CorruptDataError: the file is cut off or damaged. Lines before the damage are yielded first.
        StorageError: the file could not be read.
    """
    with bucket.open(key) as file:
        unpacking = Unpacking(file, compression="GZIP")
        with io.BufferedReader(cast("io.RawIOBase", unpacking), BLOCK_BYTES) as unpacked:
            yield from split_lines(iter(lambda: unpacked.read(BLOCK_BYTES), b""))
        if unpacking.failure is not None:
            raise CorruptDataError(f"it cannot be decompressed: {unpacking.failure}")


def split_lines(blocks: Iterable[bytes]) -> Iterator[bytes | None]:
    """Yields the lines of a text that arrives in blocks; None for one of more than `MAX_LINE_BYTES`.

    A line break at the end of the text begins no further line.
    """
    begun: list[bytes] = []
    begun_bytes = 0
    for block in blocks:
        *lines, rest = block.split(NEWLINE)
        for line in lines:
            yield _joined([*begun, line], begun_bytes + len(line))
            begun, begun_bytes = [], 0
        begun_bytes += len(rest)
        begun = [] if begun_bytes > MAX_LINE_BYTES else [*begun, rest]
    if begun_bytes:
        yield _joined(begun, begun_bytes)


def _joined(pieces: list[bytes], size_bytes: int) -> bytes | None:
    return None if size_bytes > MAX_LINE_BYTES else b"".join(pieces)


def _next_line(bucket: AbstractBucket, key: str, *, at: int, size_bytes: int) -> int:
    """Returns where the first line begins at a byte of a file or after it; the file's length if none does."""
    if at == 0:
        return 0
    for block_start in range(at - 1, size_bytes, SEARCH_BYTES):
        block = bucket.read(key, start_byte=block_start, end_byte=block_start + SEARCH_BYTES)
        if (found := block.find(NEWLINE)) >= 0:
            return block_start + found + 1
    return size_bytes


def _blocks(bucket: AbstractBucket, key: str, *, start: int, end: int) -> Iterator[bytes]:
    for block_start in range(start, end, BLOCK_BYTES):
        block_end = min(block_start + BLOCK_BYTES, end)
        block = bucket.read(key, start_byte=block_start, end_byte=block_end)
        if len(block) != block_end - block_start:
            raise CorruptDataError(
                "it has become shorter", received=f"{block_start + len(block)} bytes", allowed=f"{end} bytes or more"
            )
        yield block
