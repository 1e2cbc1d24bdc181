"""Validation of arguments: names, numbers, flags, dtypes. Each error names the argument in one line."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from lockstep.errors import InvalidInputError


def check_name(value: Any, *, of: str) -> str:
    """Checks a name, and returns it.

    Args:
        value: the value to check.
        of: the thing that has the name, in words for the error.

    Raises:
        InvalidInputError: If the value is not text, is empty, or cannot be encoded as UTF-8.
    """
    if isinstance(value, str) and value and is_utf8(value):
        return value
    raise InvalidInputError(f"the name of {of}", received=describe_received(value), allowed="non-empty text")


def is_utf8(text: str) -> bool:
    """Whether a text can be encoded as UTF-8; a text with a lone surrogate cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_int(value: Any, *, name: str, minimum: int, maximum: int | None = None) -> int:
    """Checks a whole number, and returns it as an ``int``; NumPy's integers are accepted.

    Args:
        value: the value to check.
        name: the argument, in words for the error.
        minimum: the smallest allowed number.
        maximum: the largest allowed number; None for no upper bound.

    Raises:
        InvalidInputError: If the value is not a whole number, or is out of bounds.
    """
    number = int_or_none(value)
    if number is None or number < minimum or (maximum is not None and number > maximum):
        raise InvalidInputError(
            name, received=describe_received(value), allowed=f"a whole number, {_bounds(minimum, maximum)}"
        )
    return number


def check_float(value: Any, *, name: str, minimum: float, maximum: float) -> float:
    """Checks a finite number, and returns it as a ``float``; NumPy's numbers are accepted.

    Args:
        value: the value to check.
        name: the argument, in words for the error.
        minimum: the smallest allowed number.
        maximum: the largest allowed number.

    Raises:
        InvalidInputError: If the value is not a finite number, or is out of bounds.
    """
    if _is_number(value) and minimum <= value <= maximum:
        return float(value)
    raise InvalidInputError(name, received=describe_received(value), allowed=f"a number, {_bounds(minimum, maximum)}")


def check_bounds(value: Any, *, name: str, minimum: float, maximum: float) -> tuple[float, float]:
    """Checks a range, and returns its bounds: two finite numbers, the second not below the first.

    Args:
        value: the value to check: a sequence of two numbers.
        name: the argument, in words for the error.
        minimum: the smallest allowed first number.
        maximum: the largest allowed second number.

    Raises:
        InvalidInputError: If the value is not two numbers in ascending order, or they are out of bounds.
    """
    if is_sequence(value) and len(value) == 2 and all(_is_number(bound) for bound in value):
        low, high = cast("Sequence[float]", value)
        if minimum <= low <= high <= maximum:
            return float(low), float(high)
    raise InvalidInputError(
        name,
        received=describe_received(value),
        allowed=f"two numbers, the smaller one first, each {_bounds(minimum, maximum)}",
    )


def check_bool(value: Any, *, name: str) -> bool:
    """Checks a truth value, and returns it as a ``bool``; NumPy's are accepted.

    Raises:
        InvalidInputError: If the value is not a truth value.
    """
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise InvalidInputError(name, received=describe_received(value), allowed="True, False")


def check_dtype(value: Any, *, name: str, kinds: str, allowed: str) -> np.dtype[Any]:
    """Checks a dtype, and returns it as NumPy's.

    Args:
        value: the value to check: a dtype or its name.
        name: the argument, in words for the error.
        kinds: the allowed values of `numpy.dtype.kind`.
        allowed: the allowed dtypes, in words for the error.

    Raises:
        InvalidInputError: If the value names no dtype, or one of another kind.
    """
    try:
        dtype = None if value is None else np.dtype(value)  # NumPy would take None for float64
    except (TypeError, ValueError, SyntaxError):
        dtype = None
    if dtype is None or dtype.kind not in kinds:
        raise InvalidInputError(
            name, received=describe_received(value) if dtype is None else str(dtype), allowed=allowed
        )
    return dtype


def is_sequence(value: Any) -> bool:
    """Whether a value is a sequence, or an array of one or more dimensions; text and bytes are not."""
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview)


def describe_received(value: Any) -> Any:
    """Returns a value as an error shows it: None as the text "None", because the error would omit it otherwise."""
    return "None" if value is None else value


def int_or_none(value: Any) -> int | None:
    """Returns a whole number as an ``int``, also from NumPy; None for anything else, including truth values."""
    if isinstance(value, bool | np.bool_):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _is_number(value: Any) -> bool:
    is_real = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    return is_real and math.isfinite(value)


def _bounds(minimum: float, maximum: float | None) -> str:
    return f"{minimum:g} or more" if maximum is None or math.isinf(maximum) else f"{minimum:g} to {maximum:g}"


def check_callable(value: Any, name: str) -> Callable[..., Any]:
    """Checks that a value can be called, and returns it.

    Args:
        value: the value to check.
        name: the argument's name, for the error.

    Raises:
        InvalidInputError: If the value cannot be called.
    """
    if not callable(value):
        raise InvalidInputError(name, received=type(value).__name__, allowed="a function")
    return value


def check_optional_bool(value: Any, name: str) -> None:
    """Checks that a flag is True, False or None.

    Args:
        value: the value to check.
        name: the argument's name, for the error.

    Raises:
        InvalidInputError: If the value is something else.
    """
    if value is not None:
        check_bool(value, name=name)
