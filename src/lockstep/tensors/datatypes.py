"""NumPy's dtypes by the names of the Open Inference Protocol, and arrays as binary data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

DATATYPES: Final[Mapping[str, np.dtype[Any]]] = {
    "BOOL": np.dtype("?"),
    **{f"UINT{8 * size}": np.dtype(f"<u{size}") for size in (1, 2, 4, 8)},
    **{f"INT{8 * size}": np.dtype(f"<i{size}") for size in (1, 2, 4, 8)},
    **{f"FP{8 * size}": np.dtype(f"<f{size}") for size in (2, 4, 8)},
}
"""NumPy's dtypes by the protocol's names. The protocol also has BYTES, which no dtype of a fixed size represents."""
_NAMES: Final = {dtype: name for name, dtype in DATATYPES.items()}


def datatype_of(dtype: np.dtype[Any]) -> str | None:
    """Returns the protocol's name of a dtype, in any byte order; None if it has no name."""
    return _NAMES.get(dtype.newbyteorder("<"))


def to_bytes(array: np.ndarray) -> memoryview:
    """Returns the binary data of an array. It is the array's own memory if that has the right order already.

    Args:
        array: an array of any shape, whose dtype has a name in the protocol.
    """
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1).view(np.uint8).data
