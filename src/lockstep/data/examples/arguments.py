"""What people give to features: shapes, types and values, each checked where it comes in."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike

from lockstep.data.arguments import dtype_given, is_sequence, is_utf8, shown, whole_or_none
from lockstep.errors import InvalidInputError

MAX_VALUES: Final = 2**31 - 1
"""How many values a feature of a record can have at most: the message is no longer than that."""


def shape_given(given: Any, *, of: str) -> tuple[int, ...]:
    """Returns a shape.

    Args:
        given: what should be one: a sequence of sizes.
        of: what has the shape, in words.

    Raises:
        InvalidInputError: it is no sequence, a size is no whole number or negative, or they are too many values.
    """
    is_shape = is_sequence(given)
    sizes: list[Any] = list(given) if is_shape else []
    whole = [size for size in map(whole_or_none, sizes) if size is not None and size >= 0]
    if not is_shape or len(whole) < len(sizes):
        is_open = any(size is None or whole_or_none(size) == -1 for size in sizes)
        raise InvalidInputError(
            f"the shape of {of}",
            received=shown(given),
            allowed="whole numbers, 0 or more, as a sequence: (28, 28), or () for one value",
            action="read any number of values by VarLenFeature or RaggedFeature" if is_open else None,
        )
    if math.prod(whole) > MAX_VALUES:
        raise InvalidInputError(f"the shape of {of}", received=given, allowed=f"{MAX_VALUES:,} values at most")
    return tuple(whole)


def dtype_of(given: DTypeLike) -> np.dtype[Any]:
    """Returns the type that values are to have: object for bytes.

    Raises:
        InvalidInputError: no list of a record holds such values.
    """
    is_bytes = isinstance(given, str | type) and given in (bytes, str, "bytes", "string")
    allowed = "int64, float32, bytes, or another type of integers, floats or truth values"
    return dtype_given(object if is_bytes else given, of="a feature's dtype", kinds="biufO", allowed=allowed)


def array_given(given: Any, dtype: DTypeLike, *, what: str) -> np.ndarray:
    """Returns values as an array of a feature's type.

    Args:
        given: a value, nested sequences of values, or an array; text becomes bytes as UTF-8.
        dtype: the type that they are to have: object for bytes.
        what: what is wrong where they do not fit, in words.

    Raises:
        InvalidInputError: they are of another kind, rows of them have different lengths, or an integer is beyond
            what the type can hold.
    """
    wanted = np.dtype(dtype)
    try:
        array = np.asarray(given, object) if wanted.kind == "O" else np.asarray(given)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInputError(what, received=given, allowed="rows of one length") from None
    if not array.size:
        return np.empty(array.shape, wanted)
    if wanted.kind == "O":
        return _bytes(array, given, what=what)
    if array.dtype.kind not in ("biuf" if wanted.kind in "fc" else "biu"):
        raise InvalidInputError(what, received=shown(given), allowed=f"values of {wanted}")
    check_range(array, wanted)
    return array.astype(wanted, copy=False)


def check_range(values: np.ndarray, dtype: np.dtype[Any]) -> None:
    """Checks that a type of integers holds some integers.

    Raises:
        InvalidInputError: one is beyond it.
    """
    if dtype.kind not in "iu" or np.can_cast(values.dtype, dtype) or not values.size:
        return
    limits = np.iinfo(dtype)
    least, most = int(values.min()), int(values.max())
    if least < limits.min or most > limits.max:
        raise InvalidInputError(
            "an integer is beyond what its feature's dtype holds",
            received=least if least < limits.min else most,
            allowed=f"{limits.min} to {limits.max}: {dtype}",
        )


def _bytes(array: np.ndarray, given: Any, *, what: str) -> np.ndarray:
    items = array.reshape(-1).tolist()
    if all(isinstance(item, bytes) for item in items):
        return array
    if not all(isinstance(item, bytes) or (isinstance(item, str) and is_utf8(item)) for item in items):
        raise InvalidInputError(what, received=shown(given), allowed="bytes, or text that UTF-8 can say")
    encoded = np.empty(len(items), object)
    encoded[:] = [item.encode() if isinstance(item, str) else item for item in items]
    return encoded.reshape(array.shape)
