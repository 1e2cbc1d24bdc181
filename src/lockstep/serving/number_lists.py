"""Reads the most common body of a request: nested lists of numbers for a model with one input of a fixed shape.

Python objects for each number would take several times as long as the model of a small net. `read_numbers` has simdjson
write the numbers into one array instead. It returns None for every other body, and for invalid ones, which
`lockstep.serving.instances` reads or refuses.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, cast

import numpy as np

from lockstep.serving.instances import InputSpec

try:
    import simdjson
except ImportError:  # there is no wheel for this version of Python
    simdjson = None

_OF_NUMBERS: Final = b"0123456789+-.eE \t\r\n"
"""The characters of numbers, and whitespace. Without them, a body consists of brackets, commas, and its key."""
_KEY: Final = "instances"
_BEGIN: Final = f'{{"{_KEY}":['.encode().translate(None, _OF_NUMBERS)
_END: Final = b"]}"
_LONGEST_INTEGER_BYTES: Final = 4
"""Numbers are read as float64, which represents all integers of this size."""

_parsers = threading.local()


def read_numbers(body: bytes, spec: InputSpec) -> np.ndarray | None:
    """Reads instances that are nested lists of numbers.

    Args:
        body: the body of the request.
        spec: the model's only input.

    Returns:
        An array of float64 and shape ``[num_instances, *spec.shape]``; None if the body is anything else.
    """
    dtype = np.dtype(spec.dtype)
    if simdjson is None or not spec.is_fixed or dtype.kind not in "iuf":
        return None
    if dtype.kind != "f" and dtype.itemsize > _LONGEST_INTEGER_BYTES:
        return None
    shape = cast("tuple[int, ...]", spec.shape)
    num_rows = _num_rows(body.translate(None, _OF_NUMBERS), shape)
    if num_rows is None:
        return None
    try:
        # It refuses what is not JSON, so there is exactly one number wherever a number can be.
        values = np.frombuffer(_parser().parse(body)[_KEY].as_buffer(of_type="d"))
    except (KeyError, ValueError, RuntimeError, AttributeError):
        return None
    return values.reshape(num_rows, *shape) if values.size == num_rows * math.prod(shape) else None


def _num_rows(brackets: bytes, shape: Sequence[int]) -> int | None:
    """Returns the number of instances in a body without numbers; None if they are not all lists of a shape."""
    row = _brackets(tuple(shape))
    num_rows, rest = divmod(len(brackets) - len(_BEGIN) - len(_END) + 1, len(row) + 1)
    if rest or num_rows < 1 or not math.prod(shape):
        return None
    return num_rows if brackets == _BEGIN + b",".join([row] * num_rows) + _END else None


@lru_cache(maxsize=16)
def _brackets(shape: tuple[int, ...]) -> bytes:
    """Returns the JSON of an instance without its numbers, such as ``[[,],[,]]`` for the shape (2, 2)."""
    found = b""
    for size in reversed(shape):
        found = b"[" + b",".join([found] * size) + b"]"
    return found


def _parser() -> Any:
    """Returns the thread's own parser, which keeps its memory between requests."""
    parser = getattr(_parsers, "parser", None)
    if parser is None:
        assert simdjson is not None
        parser = _parsers.parser = simdjson.Parser()
    return parser
