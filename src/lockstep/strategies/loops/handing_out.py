"""What code under a trace hands to whoever traces it, past its own results; out of a replica's step too."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_handed: ContextVar[list[Any] | None] = ContextVar("lockstep_handed_out", default=None)


@contextmanager
def handed_out() -> Generator[list[Any]]:
    """Within, the list that it yields gets what code hands out, in order, and nobody further out does."""
    handed: list[Any] = []
    token = _handed.set(handed)
    try:
        yield handed
    finally:
        _handed.reset(token)


def hand_out(value: Any) -> None:
    """Hands a value out; where nobody takes it, nothing becomes of it.

    Args:
        value: an array. Out of a step of several replicas comes an array of theirs, with the replicas as its first dim.
    """
    handed = _handed.get()
    if handed is not None:
        handed.append(value)
