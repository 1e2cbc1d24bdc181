"""Lets traced code pass extra arrays to the code that traces it, beside its own results; also from a replica's step."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_handed: ContextVar[list[Any] | None] = ContextVar("lockstep_handed_out", default=None)


@contextmanager
def handed_out() -> Generator[list[Any]]:
    """Yields a list that receives the values that code hands out within the block, in order.

    An enclosing block does not receive these values.
    """
    handed: list[Any] = []
    token = _handed.set(handed)
    try:
        yield handed
    finally:
        _handed.reset(token)


def hand_out(value: Any) -> None:
    """Hands a value out to the enclosing `handed_out` block. Without such a block, the value is dropped.

    Args:
        value: an array. From a step of several replicas, the block receives one array with the replicas as first dim.
    """
    handed = _handed.get()
    if handed is not None:
        handed.append(value)
