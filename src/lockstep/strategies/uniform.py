"""Code that writes the same to variables on every replica, so that nothing has to be reduced."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

_uniform: ContextVar[bool] = ContextVar("lockstep_uniform_writes", default=False)


@contextmanager
def uniform_writes() -> Generator[None]:
    """Within, what is assigned to variables is the same on every replica by construction: nothing need be reduced."""
    token = _uniform.set(True)
    try:
        yield
    finally:
        _uniform.reset(token)


def writes_are_uniform() -> bool:
    """Whether `uniform_writes` was entered."""
    return _uniform.get()
