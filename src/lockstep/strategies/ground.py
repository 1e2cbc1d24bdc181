"""What code under a strategy knows of it: its layout, its replicas, how values travel between them."""

# Keras is only partly typed, so the type checker does not know the types of its values in this file.
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from lockstep.strategies.loops.collectives import CommunicationOptions
from lockstep.strategies.mesh import AbstractLayout


class AbstractGround(ABC):
    """A strategy, as what runs under it sees it."""

    @property
    @abstractmethod
    def layout(self) -> AbstractLayout:
        """Where variables and batches lie."""

    @property
    @abstractmethod
    def communication_options(self) -> CommunicationOptions:
        """How values travel between replicas."""

    @property
    @abstractmethod
    def num_replicas_in_sync(self) -> int:
        """How many replicas share a global batch, over all processes."""


_current: ContextVar[AbstractGround | None] = ContextVar("lockstep_strategy", default=None)


@contextmanager
def current_ground(ground: AbstractGround) -> Generator[None]:
    """Makes a strategy the current one of this thread."""
    token = _current.set(ground)
    try:
        yield
    finally:
        _current.reset(token)


def entered_ground() -> AbstractGround | None:
    """Returns the strategy whose scope was entered in this thread, or None."""
    return _current.get()
