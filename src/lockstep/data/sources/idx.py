"""The IDX format of MNIST and its successors: a small header, then the elements of one array."""

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
    """Returns a file's content, whether it is compressed by gzip or not.

    Args:
        data: the file.
        name: its name, for errors.

    Raises:
        CorruptDataError: it is compressed, and cut off or damaged, or unpacks to more than such a file has.
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
    """Reads an array of bytes.

    Args:
        content: the file, uncompressed: two zero bytes, the type (8: uint8), the number of dimensions, each
            dimension's size in 4 bytes (big-endian), the elements.
        name: the file's name, for errors.

    Returns:
        An array of uint8, which is read-only.

    Raises:
        CorruptDataError: it is of another format, of another type, or has another length than it says.
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
