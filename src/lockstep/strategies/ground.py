"""The interface of a strategy for code that runs under it: its layout, its replicas, and how values are sent."""

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
    """A strategy, as the code that runs under it uses it."""

    @property
    @abstractmethod
    def layout(self) -> AbstractLayout:
        """The placement of variables and batches on the devices."""

    @property
    @abstractmethod
    def communication_options(self) -> CommunicationOptions:
        """How values are sent between replicas."""

    @property
    @abstractmethod
    def num_replicas_in_sync(self) -> int:
        """The number of replicas that share a global batch, over all processes."""


_current: ContextVar[AbstractGround | None] = ContextVar("lockstep_strategy", default=None)


@contextmanager
def current_ground(ground: AbstractGround) -> Generator[None]:
    """Makes a strategy the current one of this thread within a ``with`` block."""
    token = _current.set(ground)
    try:
        yield
    finally:
        _current.reset(token)


def entered_ground() -> AbstractGround | None:
    """Returns the strategy in whose scope this thread is, or None."""
    return _current.get()
