"""What people give to features and parsers: names, shapes, types and values, each checked where it comes in."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike

from lockstep.errors import InvalidInputError

MAX_VALUES: Final = 2**31 - 1
"""How many values a feature of a record can have at most: the message is no longer than that."""


def name_given(given: Any, *, of: str) -> str:
    """Returns a name.

    Args:
        given: what should be one.
        of: what has the name, in words.

    Raises:
        InvalidInputError: it is no text, empty, or nothing that UTF-8 can say.
    """
    if isinstance(given, str) and given and is_utf8(given):
        return given
    raise InvalidInputError(f"the name of {of}", received=shown(given), allowed="text of one letter or more")


def is_utf8(text: str) -> bool:
    """Whether a text can be kept as UTF-8: half of a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def size_given(given: Any, *, of: str, least: int) -> int:
    """Returns a whole number, NumPy's too.

    Args:
        given: what should be one.
        of: what has the size, in words.
        least: how large it has to be.

    Raises:
        InvalidInputError: it is none, or smaller.
    """
    size = _integer(given)
    if size is None or size < least:
        raise InvalidInputError(of, received=shown(given), allowed=f"a whole number, {least} or more")
    return size


def shape_given(given: Any, *, of: str) -> tuple[int, ...]:
    """Returns a shape.

    Args:
        given: what should be one: a sequence of sizes.
        of: what has the shape, in words.

    Raises:
        InvalidInputError: it is no sequence, a size is no whole number or negative, or they are too many values.
    """
    sizes = list(given) if isinstance(given, Sequence | np.ndarray) and not isinstance(given, str | bytes) else ["none"]
    whole = [size for size in map(_integer, sizes) if size is not None and size >= 0]
    if len(whole) < len(sizes):
        is_open = any(size is None or _integer(size) == -1 for size in sizes)
        raise InvalidInputError(
            f"the shape of {of}",
            received=shown(given),
            allowed="whole numbers, 0 or more, as a sequence: (28, 28), or () for one value",
            action="read any number of values by VarLenFeature or RaggedFeature" if is_open else None,
        )
    if math.prod(whole) > MAX_VALUES:
        raise InvalidInputError(f"the shape of {of}", received=given, allowed=f"{MAX_VALUES:,} values at most")
    return tuple(whole)


def dtype_given(given: Any, *, of: str, kinds: str, allowed: str) -> np.dtype[Any]:
    """Returns a type of NumPy's.

    Args:
        given: what should name one.
        of: what has the type, in words.
        kinds: what `numpy.dtype.kind` may be.
        allowed: the same in words.

    Raises:
        InvalidInputError: it names none, or one of another kind.
    """
    try:
        dtype = None if given is None else np.dtype(given)  # which takes None for float64
    except (TypeError, ValueError, SyntaxError):
        dtype = None
    if dtype is None or dtype.kind not in kinds:
        raise InvalidInputError(of, received=shown(given) if dtype is None else str(dtype), allowed=allowed)
    return dtype


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


def shown(given: Any) -> Any:
    """Returns what an error says was received: of None its name, which would otherwise be left out."""
    return "None" if given is None else given


def _bytes(array: np.ndarray, given: Any, *, what: str) -> np.ndarray:
    items = array.reshape(-1).tolist()
    if all(isinstance(item, bytes) for item in items):
        return array
    if not all(isinstance(item, bytes) or (isinstance(item, str) and is_utf8(item)) for item in items):
        raise InvalidInputError(what, received=shown(given), allowed="bytes, or text that UTF-8 can say")
    encoded = np.empty(len(items), object)
    encoded[:] = [item.encode() if isinstance(item, str) else item for item in items]
    return encoded.reshape(array.shape)


def _integer(given: Any) -> int | None:
    if isinstance(given, bool | np.bool_):
        return None
    try:
        return operator.index(given)
    except TypeError:
        return None
