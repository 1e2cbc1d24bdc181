"""The encoding of values between coordinator and workers: structures of numbers, texts and arrays, but no code."""

# JAX is only partly typed, so the checks below are off in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import jax
import numpy as np

from lockstep.errors import CorruptDataError, InvalidInputError
from lockstep.parameter_server.links.frames import DTYPES, MAX_HEADER_BYTES

_MAX_DEPTH: Final = 32
_MAX_INT_BITS: Final = 1 << 13
_LEFT_BYTES: Final = 1 << 20
"""The size of the rest of a message's header, in bytes."""
_ARRAY_BYTES: Final = 128
"""The size of an array's entry in a message's header, in bytes: its name, dtype, shape and position."""
_ALLOWED: Final = "numbers, texts, None, arrays, and lists, tuples and dicts of them"

Refer = Callable[[Any], "list[Any] | None"]
"""Returns the reference for an object that stays in its process; None for a value that is encoded itself."""
Resolve = Callable[[list[Any]], Any]
"""Returns the object for a reference."""


def encode(value: Any, *, what: str, refer: Refer = lambda _value: None) -> tuple[Any, dict[str, np.ndarray[Any, Any]]]:
    """Encodes a value as JSON, and the arrays in it by their names there.

    Args:
        value: the value.
        what: a description of the value, for error messages.
        refer: returns the references for objects that stay in their process.

    Raises:
        InvalidInputError: a part of the value cannot be encoded.
    """
    arrays: dict[str, np.ndarray[Any, Any]] = {}

    def pack(one: Any, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise InvalidInputError(f"{what} is nested too deeply", allowed=f"{_MAX_DEPTH} levels")
        if (reference := refer(one)) is not None:
            return ["ref", *reference]
        if one is None or isinstance(one, bool):
            return one
        if isinstance(one, str):
            return _checked_text(one, what=what)
        if isinstance(one, int | float) and not isinstance(one, np.generic):
            if isinstance(one, int) and one.bit_length() > _MAX_INT_BITS:
                raise InvalidInputError(f"{what} has too large a number", allowed=f"{_MAX_INT_BITS} bits")
            return one if isinstance(one, int) or math.isfinite(one) else ["float", repr(one)]
        if isinstance(one, np.ndarray | np.generic | jax.Array):
            name = str(len(arrays))
            arrays[name] = np.array(one)  # a copy: it is sent later, when the caller may have changed the array
            if arrays[name].dtype.name not in DTYPES:
                raise InvalidInputError(
                    f"{what} has an array that cannot be sent",
                    received=str(arrays[name].dtype),
                    allowed=DTYPES,
                    action="convert it; of complex numbers the real and the imaginary part",
                )
            return ["array", name]
        if isinstance(one, Mapping):
            if not all(isinstance(key, str) for key in one):
                raise InvalidInputError(f"{what} has a dict whose keys are not strings", received=list(one)[:3])
            return {_checked_text(str(key), what=what): pack(item, depth + 1) for key, item in one.items()}
        if isinstance(one, list | tuple):
            return ["list" if isinstance(one, list) else "tuple", *(pack(item, depth + 1) for item in one)]
        raise InvalidInputError(
            f"{what} has something that cannot be sent", received=type(one).__name__, allowed=_ALLOWED
        )

    packed = pack(value, 0)
    size_bytes = len(json.dumps(packed, ensure_ascii=False).encode()) + len(arrays) * _ARRAY_BYTES
    if size_bytes > MAX_HEADER_BYTES - _LEFT_BYTES:
        raise InvalidInputError(
            f"{what} is too large, apart from its arrays",
            received=f"{size_bytes:,} bytes",
            allowed=f"{MAX_HEADER_BYTES - _LEFT_BYTES:,} bytes",
            action="make one array of a list of numbers",
        )
    return packed, arrays


def _checked_text(text: str, *, what: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidInputError(f"{what} has a text with a lone surrogate", received=text) from None
    return text


def decode(packed: Any, arrays: Mapping[str, np.ndarray[Any, Any]], *, resolve: Resolve | None = None) -> Any:
    """Returns the value that was encoded. Its arrays are copies.

    Args:
        packed: the value as JSON.
        arrays: the arrays by name.
        resolve: returns the objects for references; None to reject references.

    Raises:
        CorruptDataError: the JSON is not from `encode`.
    """
    if isinstance(packed, dict):
        return {str(key): decode(item, arrays, resolve=resolve) for key, item in packed.items()}
    if not isinstance(packed, list):
        return packed
    kind, *rest = packed or [None]
    if kind == "list":
        return [decode(item, arrays, resolve=resolve) for item in rest]
    if kind == "tuple":
        return tuple(decode(item, arrays, resolve=resolve) for item in rest)
    if kind == "array" and len(rest) == 1 and str(rest[0]) in arrays:
        return np.array(arrays[str(rest[0])])
    if kind == "float" and rest in (["inf"], ["-inf"], ["nan"]):
        return float(str(rest[0]))
    if kind == "ref" and resolve is not None:
        return resolve(rest)
    raise CorruptDataError("a value that cannot be read", received=kind)
