"""Detects the kind of a record file from its first bytes."""

from __future__ import annotations

from typing import Literal

from lockstep.data.files.array_record import is_array_record
from lockstep.data.files.compression import compression_of

Kind = Literal["TFRecord", "GZIP", "ZLIB", "ArrayRecord"]


def kind_of(head: bytes) -> Kind:
    """Returns the kind of a record file. A file of no other kind counts as a TFRecord file.

    Args:
        head: the file's first `HEAD_BYTES` bytes, as for `compression_of`, or the whole file if it is shorter.
    """
    return "ArrayRecord" if is_array_record(head) else compression_of(head) or "TFRecord"
