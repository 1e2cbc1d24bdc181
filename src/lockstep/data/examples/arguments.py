"""Validation of arguments of features: shapes, dtypes and values."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike

from lockstep.data.arguments import check_dtype, describe_received, int_or_none, is_sequence, is_utf8
from lockstep.errors import InvalidInputError

MAX_VALUES: Final = 2**31 - 1
"""The largest number of values of a feature in one record: a message cannot have more bytes than that."""

_WHOLE: Final = (int, np.integer, np.bool_)


def check_shape(value: Any, *, of: str) -> tuple[int, ...]:
    """Checks a shape, and returns it.

    Args:
        value: the value to check: a sequence of sizes.
        of: the thing that has the shape, in words for the error.

    Raises:
        InvalidInputError: If the value is not a sequence, if a size is not a whole number or is negative, or if the
            shape has more than `MAX_VALUES` values.
    """
    is_shape = is_sequence(value)
    sizes: list[Any] = list(value) if is_shape else []
    whole = [size for size in map(int_or_none, sizes) if size is not None and size >= 0]
    if not is_shape or len(whole) < len(sizes):
        is_open = any(size is None or int_or_none(size) == -1 for size in sizes)
        raise InvalidInputError(
            f"the shape of {of}",
            received=describe_received(value),
            allowed="whole numbers, 0 or more, as a sequence: (28, 28), or () for one value",
            action="read any number of values by VarLenFeature or RaggedFeature" if is_open else None,
        )
    if math.prod(whole) > MAX_VALUES:
        raise InvalidInputError(f"the shape of {of}", received=value, allowed=f"{MAX_VALUES:,} values at most")
    return tuple(whole)


def dtype_of(value: DTypeLike) -> np.dtype[Any]:
    """Checks the dtype of a feature, and returns it; object for bytes.

    Raises:
        InvalidInputError: If no list of a record can hold such values.
    """
    is_bytes = isinstance(value, str | type) and value in (bytes, str, "bytes", "string")
    allowed = "int64, float32, bytes, or another type of integers, floats or truth values"
    return check_dtype(object if is_bytes else value, name="a feature's dtype", kinds="biufO", allowed=allowed)


def check_array(value: Any, dtype: DTypeLike, *, what: str) -> np.ndarray:
    """Checks the values of a feature, and returns them as an array of its dtype.

    Args:
        value: one value, nested sequences of values, or an array; text is encoded as UTF-8.
        dtype: the dtype of the result; object for bytes.
        what: what is wrong if the values do not fit, in words for the error.

    Raises:
        InvalidInputError: If the values are of another kind, some of them are masked, rows have different lengths, or a
            number is out of the dtype's range.
    """
    wanted = np.dtype(dtype)
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise InvalidInputError(what, received=describe_received(value), allowed="an array without masked values")
    try:
        array = np.asarray(value, object) if wanted.kind == "O" else np.asarray(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInputError(what, received=value, allowed="rows of one length") from None
    if not array.size:
        return np.empty(array.shape, wanted)
    if wanted.kind == "O":
        return _bytes(array, value, what=what)
    if array.dtype.kind in ("O" if wanted.kind == "f" else "Of") and is_all_whole(objects := np.asarray(value, object)):
        array = objects  # integers that no single dtype of NumPy's can hold
    elif array.dtype.kind not in ("biuf" if wanted.kind in "fc" else "biu"):
        raise InvalidInputError(what, received=describe_received(value), allowed=f"values of {wanted}")
    check_range(array, wanted)
    return array.astype(wanted, copy=False)


def is_all_whole(values: Any) -> bool:
    """Whether all values are integers or truth values, of Python or NumPy.

    Args:
        values: a sequence of one dimension, or an array.
    """
    items = values.reshape(-1) if isinstance(values, np.ndarray) else values
    return all(isinstance(item, _WHOLE) for item in items)


def check_range(values: np.ndarray, dtype: np.dtype[Any]) -> None:
    """Checks that numbers are in a dtype's range. Floats may be rounded, but must not become infinite.

    Args:
        values: integers, truth values or floats; integers may be objects.
        dtype: a dtype of the same kind, or of floats for integers.

    Raises:
        InvalidInputError: If a number is out of range.
    """
    if not values.size or np.can_cast(values.dtype, dtype):
        return
    beyond = _float_beyond(values, dtype) if dtype.kind == "f" else _integer_beyond(values, dtype)
    if beyond is not None:
        low, high = _limits(dtype)
        infinite = ", or an infinity that is given as one" if dtype.kind == "f" else ""
        raise InvalidInputError(
            "a number is out of range of its feature's dtype",
            received=beyond,
            allowed=f"{low} to {high}{infinite}: {dtype}",
        )


def _float_beyond(values: np.ndarray, dtype: np.dtype[Any]) -> Any:
    """Returns the first number that would become infinite; None if there is none."""
    values = values.reshape(-1)
    if values.dtype == object:
        is_beyond = np.abs(values) > _limits(dtype)[1]
    else:
        with np.errstate(over="ignore"):
            is_beyond = np.isinf(values.astype(dtype))
        if is_beyond.any():
            is_beyond &= np.isfinite(values)
    return values[is_beyond].tolist()[0] if is_beyond.any() else None


def _integer_beyond(values: np.ndarray, dtype: np.dtype[Any]) -> int | None:
    low, high = _limits(dtype)
    return next((end for end in (int(values.min()), int(values.max())) if not low <= end <= high), None)


def _limits(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    if dtype.kind == "b":
        return 0, 1
    if dtype.kind == "f":
        most = float(np.finfo(dtype).max)
        return -most, most
    return np.iinfo(dtype).min, np.iinfo(dtype).max


def _bytes(array: np.ndarray, value: Any, *, what: str) -> np.ndarray:
    items = array.reshape(-1).tolist()
    if all(isinstance(item, bytes) for item in items):
        return array
    if not all(isinstance(item, bytes) or (isinstance(item, str) and is_utf8(item)) for item in items):
        raise InvalidInputError(
            what, received=describe_received(value), allowed="bytes, or text that can be encoded as UTF-8"
        )
    encoded = np.empty(len(items), object)
    encoded[:] = [item.encode() if isinstance(item, str) else item for item in items]
    return encoded.reshape(array.shape)
