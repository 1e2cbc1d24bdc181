"""Closures, the calls that workers make, and the values that stand for their results."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from lockstep.errors import LockstepError


@final
class ClosureError(LockstepError):
    """A closure failed: it raised an error, with the worker's stack as a note, or it lost too many workers."""


@final
class ClosureAbortedError(LockstepError):
    """A closure was not run to its end, because the error of another one cancelled it."""


@final
class ClosureTakenBackError(LockstepError):
    """A closure was cancelled while no worker had it, because its result was not needed any more."""


@final
@dataclass(frozen=True, kw_only=True)
class Closure:
    """A call that a worker is to make.

    Attributes:
        function: the name of the function. All processes that run the script know it.
        arguments: the encoded arguments.
        arrays: the arrays in the arguments.
        choose: a function that is called once, from the dispatcher's thread, with the name of the worker that gets the
            closure first. Its result is sent with the closure, also when another worker runs it again.
        on_end: a function that is called from the dispatcher's thread when the closure has ended, in any way.
        num_steps: the number of steps in the closure. The numbers of closures and the lead of workers count steps.
        unpack: a function that is called from the dispatcher's thread with the function's result, and returns the value
            to be fetched.
        holds: an object to keep alive until the closure has ended, because references in the arguments stand for it.
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
    """The future result of a closure, named as in ``tf.distribute``."""

    def __init__(self, *, on_end: Callable[[RemoteValue], object] | None = None) -> None:
        self._on_end = on_end
        self._ended = threading.Event()
        self._value: Any = None
        self._error: LockstepError | None = None

    def fetch(self) -> Any:
        """Waits for the end of the closure and returns its result.

        Raises:
            ClosureError: the closure failed.
            ClosureAbortedError: the closure was cancelled.
        """
        self._ended.wait()
        if self._error is not None:
            raise self._error
        return self._value

    def get(self) -> Any:
        """Same as `fetch`: the other name in ``tf.distribute``."""
        return self.fetch()

    @property
    def is_cancelled(self) -> bool:
        """Whether the closure was cancelled while no worker had it, because its result was not needed any more."""
        return isinstance(self._error, ClosureTakenBackError)

    @property
    def is_returned(self) -> bool:
        """Whether the closure has ended without an error, so that `fetch` neither waits nor raises."""
        return self.is_ended and self._error is None

    @property
    def is_ended(self) -> bool:
        """Whether the closure has ended, in any way."""
        return self._ended.is_set()

    def end(self, value: Any = None, *, error: LockstepError | None = None) -> None:
        """Sets the result or the error of the closure. Only called by the dispatcher.

        Args:
            value: the value that `fetch` returns.
            error: the error that `fetch` raises instead.
        """
        self._value, self._error = value, error
        self._ended.set()
        if self._on_end is not None:
            self._on_end(self)
