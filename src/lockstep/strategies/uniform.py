"""Marks code that writes the same values to variables on every replica, so that they need not be reduced."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

_uniform: ContextVar[bool] = ContextVar("lockstep_uniform_writes", default=False)


@contextmanager
def uniform_writes() -> Generator[None]:
    """Declares that all values assigned to variables within the block are the same on every replica."""
    token = _uniform.set(True)
    try:
        yield
    finally:
        _uniform.reset(token)


def writes_are_uniform() -> bool:
    """Whether this code runs within `uniform_writes`."""
    return _uniform.get()
