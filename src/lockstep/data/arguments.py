"""Validation of arguments: names, numbers, flags, dtypes. Each error names the argument in one line."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from lockstep.errors import InvalidInputError


def name_given(given: Any, *, of: str) -> str:
    """Checks a name, and returns it.

    Args:
        given: the value to check.
        of: the thing that has the name, in words for the error.

    Raises:
        InvalidInputError: If the value is not text, is empty, or cannot be encoded as UTF-8.
    """
    if isinstance(given, str) and given and is_utf8(given):
        return given
    raise InvalidInputError(f"the name of {of}", received=shown(given), allowed="non-empty text")


def is_utf8(text: str) -> bool:
    """Whether a text can be encoded as UTF-8; a text with a lone surrogate cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def whole_given(given: Any, *, of: str, least: int, most: int | None = None) -> int:
    """Checks a whole number, and returns it as an ``int``; NumPy's integers are accepted.

    Args:
        given: the value to check.
        of: the argument, in words for the error.
        least: the smallest allowed number.
        most: the largest allowed number; None for no upper bound.

    Raises:
        InvalidInputError: If the value is not a whole number, or is out of bounds.
    """
    number = whole_or_none(given)
    if number is None or number < least or (most is not None and number > most):
        raise InvalidInputError(of, received=shown(given), allowed=f"a whole number, {_bounds(least, most)}")
    return number


def number_given(given: Any, *, of: str, least: float, most: float) -> float:
    """Checks a finite number, and returns it as a ``float``; NumPy's numbers are accepted.

    Args:
        given: the value to check.
        of: the argument, in words for the error.
        least: the smallest allowed number.
        most: the largest allowed number.

    Raises:
        InvalidInputError: If the value is not a finite number, or is out of bounds.
    """
    if _is_number(given) and least <= given <= most:
        return float(given)
    raise InvalidInputError(of, received=shown(given), allowed=f"a number, {_bounds(least, most)}")


def range_given(given: Any, *, of: str, least: float, most: float) -> tuple[float, float]:
    """Checks a range, and returns its bounds: two finite numbers, the second not below the first.

    Args:
        given: the value to check: a sequence of two numbers.
        of: the argument, in words for the error.
        least: the smallest allowed first number.
        most: the largest allowed second number.

    Raises:
        InvalidInputError: If the value is not two numbers in ascending order, or they are out of bounds.
    """
    if is_sequence(given) and len(given) == 2 and all(_is_number(bound) for bound in given):
        low, high = cast("Sequence[float]", given)
        if least <= low <= high <= most:
            return float(low), float(high)
    raise InvalidInputError(
        of, received=shown(given), allowed=f"two numbers, the smaller one first, each {_bounds(least, most)}"
    )


def flag_given(given: Any, *, of: str) -> bool:
    """Checks a truth value, and returns it as a ``bool``; NumPy's are accepted.

    Raises:
        InvalidInputError: If the value is not a truth value.
    """
    if isinstance(given, bool | np.bool_):
        return bool(given)
    raise InvalidInputError(of, received=shown(given), allowed="True, False")


def dtype_given(given: Any, *, of: str, kinds: str, allowed: str) -> np.dtype[Any]:
    """Checks a dtype, and returns it as NumPy's.

    Args:
        given: the value to check: a dtype or its name.
        of: the argument, in words for the error.
        kinds: the allowed values of `numpy.dtype.kind`.
        allowed: the allowed dtypes, in words for the error.

    Raises:
        InvalidInputError: If the value names no dtype, or one of another kind.
    """
    try:
        dtype = None if given is None else np.dtype(given)  # NumPy would take None for float64
    except (TypeError, ValueError, SyntaxError):
        dtype = None
    if dtype is None or dtype.kind not in kinds:
        raise InvalidInputError(of, received=shown(given) if dtype is None else str(dtype), allowed=allowed)
    return dtype


def is_sequence(given: Any) -> bool:
    """Whether a value is a sequence, or an array of one or more dimensions; text and bytes are not."""
    if isinstance(given, np.ndarray):
        return given.ndim > 0
    return isinstance(given, Sequence) and not isinstance(given, str | bytes | bytearray | memoryview)


def shown(given: Any) -> Any:
    """Returns a value as an error shows it: None as the text "None", because the error would omit it otherwise."""
    return "None" if given is None else given


def whole_or_none(given: Any) -> int | None:
    """Returns a whole number as an ``int``, also from NumPy; None for anything else, including truth values."""
    if isinstance(given, bool | np.bool_):
        return None
    try:
        return operator.index(given)
    except TypeError:
        return None


def _is_number(given: Any) -> bool:
    is_real = isinstance(given, int | float | np.integer | np.floating) and not isinstance(given, bool)
    return is_real and math.isfinite(given)


def _bounds(least: float, most: float | None) -> str:
    return f"{least:g} or more" if most is None or math.isinf(most) else f"{least:g} to {most:g}"


def function_given(given: Any, name: str) -> Callable[..., Any]:
    """Checks that a value can be called, and returns it.

    Args:
        given: the value to check.
        name: the argument's name, for the error.

    Raises:
        InvalidInputError: If the value cannot be called.
    """
    if not callable(given):
        raise InvalidInputError(name, received=type(given).__name__, allowed="a function")
    return given


def flag_or_none(given: Any, name: str) -> None:
    """Checks that a flag is True, False or None.

    Args:
        given: the value to check.
        name: the argument's name, for the error.

    Raises:
        InvalidInputError: If the value is something else.
    """
    if given is not None:
        flag_given(given, of=name)
