"""What people give as arguments: names, numbers, types, each checked where it comes in and named in one line."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from lockstep.errors import InvalidInputError


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


def whole_given(given: Any, *, of: str, least: int, most: int | None = None) -> int:
    """Returns a whole number, NumPy's too.

    Args:
        given: what should be one.
        of: what it is, in words.
        least: how large it has to be.
        most: how large it may be.

    Raises:
        InvalidInputError: it is none, or out of these bounds.
    """
    number = whole_or_none(given)
    if number is None or number < least or (most is not None and number > most):
        raise InvalidInputError(of, received=shown(given), allowed=f"a whole number, {_bounds(least, most)}")
    return number


def number_given(given: Any, *, of: str, least: float, most: float) -> float:
    """Returns a number, NumPy's too.

    Args:
        given: what should be one.
        of: what it is, in words.
        least: how large it has to be.
        most: how large it may be.

    Raises:
        InvalidInputError: it is none, or out of these bounds.
    """
    if _is_number(given) and least <= given <= most:
        return float(given)
    raise InvalidInputError(of, received=shown(given), allowed=f"a number, {_bounds(least, most)}")


def range_given(given: Any, *, of: str, least: float, most: float) -> tuple[float, float]:
    """Returns two numbers, the smaller one first.

    Args:
        given: what should be a sequence of them.
        of: what lies between them, in words.
        least: how large the first has to be.
        most: how large the second may be.

    Raises:
        InvalidInputError: they are not two numbers, not in this order, or out of these bounds.
    """
    if is_sequence(given) and len(given) == 2 and all(_is_number(bound) for bound in given):
        low, high = cast("Sequence[float]", given)
        if least <= low <= high <= most:
            return float(low), float(high)
    raise InvalidInputError(
        of, received=shown(given), allowed=f"two numbers, the smaller one first, each {_bounds(least, most)}"
    )


def flag_given(given: Any, *, of: str) -> bool:
    """Returns a truth value.

    Raises:
        InvalidInputError: it is none.
    """
    if isinstance(given, bool | np.bool_):
        return bool(given)
    raise InvalidInputError(of, received=shown(given), allowed="True, False")


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


def is_sequence(given: Any) -> bool:
    """Whether something is a sequence of things, or an array of one or more dimensions; text and bytes are not."""
    if isinstance(given, np.ndarray):
        return given.ndim > 0
    return isinstance(given, Sequence) and not isinstance(given, str | bytes | bytearray | memoryview)


def shown(given: Any) -> Any:
    """Returns what an error says was received: of None its name, which would otherwise be left out."""
    return "None" if given is None else given


def whole_or_none(given: Any) -> int | None:
    """Returns a whole number, NumPy's too; None of anything else, truth values among them."""
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
    """Returns a function.

    Args:
        given: what should be one.
        name: what to call it in errors.

    Raises:
        InvalidInputError: it is none.
    """
    if not callable(given):
        raise InvalidInputError(name, received=type(given).__name__, allowed="a function")
    return given


def flag_or_none(given: Any, name: str) -> None:
    """Checks that a flag is True, False or None.

    Args:
        given: what should be one.
        name: what to call it in errors.

    Raises:
        InvalidInputError: it is something else.
    """
    if given is not None:
        flag_given(given, of=name)
