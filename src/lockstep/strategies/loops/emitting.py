"""Lets traced code pass extra arrays to the code that traces it, beside its own results; also from a replica's step."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_emitted: ContextVar[list[Any] | None] = ContextVar("lockstep_emitted", default=None)


@contextmanager
def collect_emitted() -> Generator[list[Any]]:
    """Yields a list that receives the values that code emits within the block, in order.

    An enclosing block does not receive these values.
    """
    emitted: list[Any] = []
    token = _emitted.set(emitted)
    try:
        yield emitted
    finally:
        _emitted.reset(token)


def emit(value: Any) -> None:
    """Passes a value to the enclosing `collect_emitted` block. Without such a block, the value is dropped.

    Args:
        value: an array. From a step of several replicas, the block receives one array with the replicas as first dim.
    """
    emitted = _emitted.get()
    if emitted is not None:
        emitted.append(value)
