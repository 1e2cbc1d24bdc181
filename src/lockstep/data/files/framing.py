"""The TFRecord framing: a file is a sequence of records, each with two checksums.

A record is its length (8 bytes, little-endian), the masked CRC-32C of these 8 bytes (4 bytes), the data, and the masked
CRC-32C of the data (4 bytes). Masking rotates a checksum by 15 bits and adds a constant, because the CRC of data that
contains CRCs would be weak.
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
    """Returns the masked CRC-32C of some bytes, as TFRecord files store it: an unsigned 32-bit number."""
    crc = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def find_damaged(contents: bytes | mmap.mmap, *, offsets: np.ndarray, lengths: np.ndarray) -> int | None:
    """Checks the data of several records against the checksums that follow them.

    Args:
        contents: the bytes that the offsets refer to, such as the whole file.
        offsets: the offsets of the records' data in ``contents``, in bytes, int64 of shape (k,).
        lengths: the lengths of the records' data, in bytes, int64 of shape (k,).

    Returns:
        The position, among the given records, of the first one whose checksum does not match; None if all match.
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
    """Returns one record's data with its frame, which adds 16 bytes."""
    length = len(data).to_bytes(8, "little")
    return b"".join((length, _FOOTER.pack(masked_crc32c(length)), data, _FOOTER.pack(masked_crc32c(data))))


def read_records(url: str) -> Iterator[bytes]:
    """Reads the records of a file in order, and verifies both checksums of each record.

    Args:
        url: the file's URL.

    Raises:
        MissingInputError: the file does not exist.
        CorruptDataError: a record is cut off, or a checksum does not match.
    """
    bucket_url, key = split_url(url)
    with open_bucket(bucket_url).open(key) as file:
        offset = 0
        number = 0
        while header := read_fully(file, HEADER_BYTES):
            length = record_length(header, url=url, number=number, offset=offset)
            # Reads piece by piece: a single read of a damaged length could request more memory than there is.
            body = read_fully(file, length + FOOTER_BYTES)
            yield checked_data(body, length=length, url=url, number=number, offset=offset)
            offset += HEADER_BYTES + length + FOOTER_BYTES
            number += 1


def scan_lengths(file: BinaryIO | mmap.mmap, *, size_bytes: int, url: str) -> Iterator[int]:
    """Reads the length of each record from the frames, and seeks past the data.

    Args:
        file: the file, positioned at its beginning.
        size_bytes: the file's length in bytes.
        url: the file's URL, for error messages.

    Yields:
        The length of each record's data, in bytes.

    Raises:
        CorruptDataError: a record is cut off, or the checksum of its length does not match. The lengths before it are
            correct.
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
    """Returns the length of a record's data, in bytes, from the record's header.

    Args:
        header: the record's first 12 bytes, or fewer if the file is cut off.
        url: the file's URL, for error messages.
        number: the record's number in the file, from 0, for error messages.
        offset: the offset of the record in the file, in bytes, for error messages.

    Raises:
        CorruptDataError: the header is cut off, or the checksum of the length does not match.
    """
    if len(header) < HEADER_BYTES:
        _cut_off(url, number, offset, needed=HEADER_BYTES, found=len(header))
    length, expected = _HEADER.unpack(header)
    if masked_crc32c(header[:8]) != expected:
        fail_at(url, number, offset, "the checksum of its length does not match")
    return length


def checked_data(body: bytes, *, length: int, url: str, number: int, offset: int) -> bytes:
    """Verifies the checksum of a record's data, and returns the data.

    Args:
        body: the data and its checksum, or fewer bytes if the file is cut off.
        length: the length of the data according to the header, in bytes.
        url: the file's URL, for error messages.
        number: the record's number in the file, from 0, for error messages.
        offset: the offset of the record in the file, in bytes, for error messages.

    Raises:
        CorruptDataError: the data is cut off, or its checksum does not match.
    """
    if len(body) < length + FOOTER_BYTES:
        _cut_off(url, number, offset, needed=HEADER_BYTES + length + FOOTER_BYTES, found=HEADER_BYTES + len(body))
    data = body[:length]
    if masked_crc32c(data) != int.from_bytes(body[length:], "little"):
        fail_at(url, number, offset, "the checksum of its data does not match")
    return data


def is_header(header: bytes) -> bool:
    """Whether 12 bytes are a record's header: a length and its checksum."""
    return len(header) == HEADER_BYTES and masked_crc32c(header[:8]) == _HEADER.unpack(header)[1]


def read_fully(file: BinaryIO | mmap.mmap, num_bytes: int) -> bytes:
    """Reads a number of bytes, or fewer at the end of the file.

    Memory is allocated as the bytes arrive, so a damaged length does not allocate more than the file has.
    """
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
    """Raises the error for a damaged record.

    Args:
        url: the file's URL.
        number: the record's number in the file, from 0.
        offset: the offset of the record in the file, in bytes.
        reason: the description of the damage.

    Raises:
        CorruptDataError: always.
    """
    raise CorruptDataError(
        f"{url}: record {number} at byte {offset}: {reason}",
        action="copy the file again from its source, or pack it again",
    )
