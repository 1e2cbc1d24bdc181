"""Reads the IDX format of MNIST and its successors: a small header, followed by the elements of one array."""

from __future__ import annotations

import math
import zlib
from typing import Final

import numpy as np

from lockstep.errors import CorruptDataError

_GZIP_MAGIC: Final = b"\x1f\x8b"
_UINT8: Final = 0x08
_MAX_BYTES: Final = 1 << 26


def uncompressed(data: bytes, *, name: str) -> bytes:
    """Returns the contents of a file, decompressed if the file is compressed with gzip.

    Args:
        data: the bytes of the file.
        name: the file's name, for error messages.

    Raises:
        CorruptDataError: the compressed file is cut off or damaged, or decompresses to more than 64 MiB.
    """
    if not data.startswith(_GZIP_MAGIC):
        return data
    unpacker = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        content = unpacker.decompress(data, _MAX_BYTES)
        reason = "" if unpacker.eof else "it is cut off, or longer than such a file"
    except zlib.error as error:
        content, reason = b"", f"{error}"
    if reason:
        raise CorruptDataError(f"{name}: cannot be uncompressed ({reason})", action="delete it and get it again")
    return content


def parse_idx(content: bytes, *, name: str) -> np.ndarray:
    """Parses an array of bytes.

    Args:
        content: the uncompressed file: two zero bytes, the type (8: uint8), the number of dimensions, the size of each
            dimension in 4 bytes (big-endian), and the elements.
        name: the file's name, for error messages.

    Returns:
        A read-only array of uint8.

    Raises:
        CorruptDataError: the format or the element type is another one, or the length does not match the header.
    """
    if len(content) < 4 or content[:3] != bytes([0, 0, _UINT8]):
        raise CorruptDataError(f"{name}: not an IDX file of bytes", received=content[:4], allowed="00 00 08 and so on")
    num_dims = content[3]
    start = 4 + 4 * num_dims
    if len(content) < start:
        raise CorruptDataError(f"{name}: cut off in its header: {len(content)} bytes, {start} needed")
    shape = tuple(int(size) for size in np.frombuffer(content[4:start], ">u4"))
    expected = start + math.prod(shape)
    if len(content) != expected:
        raise CorruptDataError(f"{name}: {len(content)} bytes, {expected} expected for the shape {shape}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
