"""TFRecord framing: records of bytes behind each other in a file, each with two checksums.

A record is its length (8 bytes, little-endian), the masked CRC-32C of these 8 bytes (4 bytes), the data, and the masked
CRC-32C of the data (4 bytes). Masking turns the checksum by 15 bits and adds a constant, so that a checksum of data
that holds checksums stays a good one.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from typing import BinaryIO, Final, NoReturn

import google_crc32c
import numpy as np

from lockstep.data.files.record_batch import windows
from lockstep.errors import CorruptDataError
from lockstep.storage import open_bucket, split_url

HEADER_BYTES: Final = 12
FOOTER_BYTES: Final = 4
_HEADER: Final = struct.Struct("<QI")
_FOOTER: Final = struct.Struct("<I")
_READ_BYTES: Final = 1 << 20
_MASK_DELTA: Final = 0xA282EAD8


def masked_crc32c(data: bytes) -> int:
    """Returns the masked CRC-32C of some bytes, as TFRecord files hold it: an unsigned 32-bit number."""
    crc = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def find_damaged(contents: bytes | mmap.mmap, *, offsets: np.ndarray, lengths: np.ndarray) -> int | None:
    """Checks the data of several records against the checksums that follow them.

    Args:
        contents: the whole file.
        offsets: where the records' data begins, int64 of shape (k,).
        lengths: how long it is in bytes, int64 of shape (k,).

    Returns:
        The position among them of the first that fails; None where all are as they should be.
    """
    ends = offsets + lengths
    value = google_crc32c.value
    found = np.fromiter(
        (value(contents[start:end]) for start, end in zip(offsets.tolist(), ends.tolist(), strict=True)),
        np.uint32,
        len(offsets),
    )
    masked = ((found >> 15) | (found << 17)) + np.uint32(_MASK_DELTA)
    stated = windows(np.frombuffer(contents, np.uint8), FOOTER_BYTES)[ends].view("<u4")
    wrong = np.flatnonzero(masked != stated)
    return int(wrong[0]) if wrong.size else None


def frame(data: bytes) -> bytes:
    """Returns one record's data in its frame: 16 bytes longer."""
    length = len(data).to_bytes(8, "little")
    return b"".join((length, _FOOTER.pack(masked_crc32c(length)), data, _FOOTER.pack(masked_crc32c(data))))


def read_records(url: str) -> Iterator[bytes]:
    """Reads the records of a file one after the other, checking both checksums of each.

    Args:
        url: the file's URL.

    Raises:
        MissingInputError: there is no such file.
        CorruptDataError: a record is cut off or fails a check.
    """
    bucket_url, key = split_url(url)
    with open_bucket(bucket_url).open(key) as file:
        offset = 0
        number = 0
        while header := read_fully(file, HEADER_BYTES):
            length = record_length(header, url=url, number=number, offset=offset)
            # A whole read of a length that lies would ask for more memory than there is; what is there is enough.
            body = read_fully(file, length + FOOTER_BYTES)
            yield checked_data(body, length=length, url=url, number=number, offset=offset)
            offset += HEADER_BYTES + length + FOOTER_BYTES
            number += 1


def scan_lengths(file: BinaryIO | mmap.mmap, *, size_bytes: int, url: str) -> Iterator[int]:
    """Finds how long each record is, from the frames; the data is passed over.

    Args:
        file: the file, at its beginning.
        size_bytes: how long it is.
        url: its URL, for errors.

    Yields:
        The length of each record's data, in bytes.

    Raises:
        CorruptDataError: a record is cut off or its length fails its check; what came before is as it should be.
    """
    number = offset = 0
    while offset < size_bytes:
        header = read_fully(file, HEADER_BYTES)
        length = record_length(header, url=url, number=number, offset=offset)
        end = offset + HEADER_BYTES + length + FOOTER_BYTES
        if end > size_bytes:
            _cut_off(url, number, offset, needed=end - offset, found=size_bytes - offset)
        file.seek(end)
        yield length
        number += 1
        offset = end


def record_length(header: bytes, *, url: str, number: int, offset: int) -> int:
    """Reads a record's length from the beginning of its frame.

    Args:
        header: its first 12 bytes; fewer at the end of a file that is cut off.
        url: the file, for errors.
        number: the record's number in the file, from 0, for errors.
        offset: where the record begins in the file, for errors.

    Raises:
        CorruptDataError: the header is cut off, or the length fails its check.
    """
    if len(header) < HEADER_BYTES:
        _cut_off(url, number, offset, needed=HEADER_BYTES, found=len(header))
    length, expected = _HEADER.unpack(header)
    if masked_crc32c(header[:8]) != expected:
        fail_at(url, number, offset, "the checksum of its length does not match")
    return length


def checked_data(body: bytes, *, length: int, url: str, number: int, offset: int) -> bytes:
    """Returns a record's data after checking it against the checksum that follows it.

    Args:
        body: the data and its checksum; less at the end of a file that is cut off.
        length: how long the data should be, in bytes.
        url: the file, for errors.
        number: the record's number in the file, from 0, for errors.
        offset: where the record begins in the file, for errors.

    Raises:
        CorruptDataError: the data is cut off or fails its check.
    """
    if len(body) < length + FOOTER_BYTES:
        _cut_off(url, number, offset, needed=HEADER_BYTES + length + FOOTER_BYTES, found=HEADER_BYTES + len(body))
    data = body[:length]
    if masked_crc32c(data) != int.from_bytes(body[length:], "little"):
        fail_at(url, number, offset, "the checksum of its data does not match")
    return data


def is_header(header: bytes) -> bool:
    """Whether a record can begin so: with a length and its checksum, 12 bytes."""
    return len(header) == HEADER_BYTES and masked_crc32c(header[:8]) == _HEADER.unpack(header)[1]


def read_fully(file: BinaryIO | mmap.mmap, num_bytes: int) -> bytes:
    """Reads as many bytes, or what there is; memory is taken as they come, not for what a damaged length says."""
    data = file.read(min(num_bytes, _READ_BYTES))
    if len(data) == num_bytes:
        return data
    parts = [data]
    missing = num_bytes - len(data)
    while missing and (part := file.read(min(missing, _READ_BYTES))):
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def _cut_off(url: str, number: int, offset: int, *, needed: int, found: int) -> NoReturn:
    fail_at(url, number, offset, f"the file is cut off: the record needs {needed} bytes, {found} are there")


def fail_at(url: str, number: int, offset: int, reason: str) -> NoReturn:
    """Raises the error of a record that is damaged.

    Args:
        url: the file.
        number: the record's number in the file, from 0.
        offset: where the record begins in the file, in bytes.
        reason: what is wrong with it.

    Raises:
        CorruptDataError: always.
    """
    raise CorruptDataError(
        f"{url}: record {number} at byte {offset}: {reason}",
        action="copy the file again from its source, or pack it again",
    )
