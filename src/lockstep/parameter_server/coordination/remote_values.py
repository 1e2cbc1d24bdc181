"""What a worker is asked to call, and what stands for its value until it has."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from lockstep.errors import LockstepError


@final
class ClosureError(LockstepError):
    """A closure failed: by an error, in its words, with the worker's stack as a note; or it lost too many workers."""


@final
class ClosureAbortedError(LockstepError):
    """A closure was not run to its end: another one's error cancelled it."""


@final
class ClosureTakenBackError(LockstepError):
    """A closure was taken back while no worker had it, because nobody wanted it any more."""


@final
@dataclass(frozen=True, kw_only=True)
class Closure:
    """A call that some worker is to make.

    Attributes:
        function: the function's name, which every process that runs the script knows.
        arguments: the packed arguments.
        arrays: the arrays in them.
        choose: asked once, from the dispatcher's thread, with the worker's name when the closure is first given out;
            what it returns goes along, also when the closure is run again by another.
        on_end: called from the dispatcher's thread when the closure has ended, however it did.
        num_steps: of how many steps it is: closures' numbers, and how far workers are, count by them.
        unpack: called from the dispatcher's thread with what the function returned; gives what is fetched.
        holds: what is not to go before the closure has ended: references in the arguments stand for it.
    """

    function: str
    arguments: Any = None
    arrays: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict[str, "np.ndarray[Any, Any]"])
    choose: Callable[[str], Mapping[str, Any]] | None = None
    on_end: Callable[[RemoteValue], object] | None = None
    num_steps: int = 1
    unpack: Callable[[Any], Any] | None = None
    holds: Any = None


@final
class RemoteValue:
    """What a closure will return; by the name of ``tf.distribute``."""

    def __init__(self, *, on_end: Callable[[RemoteValue], object] | None = None) -> None:
        self._on_end = on_end
        self._ended = threading.Event()
        self._value: Any = None
        self._error: LockstepError | None = None

    def fetch(self) -> Any:
        """Waits for the closure's end and returns its value.

        Raises:
            ClosureError: it failed.
            ClosureAbortedError: it was cancelled.
        """
        self._ended.wait()
        if self._error is not None:
            raise self._error
        return self._value

    def get(self) -> Any:
        """The same, by ``tf.distribute``'s other name."""
        return self.fetch()

    @property
    def is_cancelled(self) -> bool:
        """Whether its closure was taken back while no worker had it, because nobody wanted it any more."""
        return isinstance(self._error, ClosureTakenBackError)

    @property
    def is_returned(self) -> bool:
        """Whether its closure has ended without an error: `fetch` waits for nothing, and raises nothing."""
        return self.is_ended and self._error is None

    @property
    def is_ended(self) -> bool:
        """Whether its closure has ended, however it did."""
        return self._ended.is_set()

    def end(self, value: Any = None, *, error: LockstepError | None = None) -> None:
        """Says what the closure returned, or by what error it ended; the dispatcher's to call.

        Args:
            value: what `fetch` returns.
            error: what it raises instead.
        """
        self._value, self._error = value, error
        self._ended.set()
        if self._on_end is not None:
            self._on_end(self)
