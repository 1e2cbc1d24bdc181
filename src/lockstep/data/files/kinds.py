"""What a file of records is, by its first bytes."""

from __future__ import annotations

from typing import Literal

from lockstep.data.files.array_record import is_array_record
from lockstep.data.files.compression import compression_of

Kind = Literal["TFRecord", "GZIP", "ZLIB", "ArrayRecord"]


def kind_of(head: bytes) -> Kind:
    """Says what a file of records is: a TFRecord file, if it is none of the others.

    Args:
        head: the file's first bytes, as many as `compression_of` takes.
    """
    return "ArrayRecord" if is_array_record(head) else compression_of(head) or "TFRecord"
