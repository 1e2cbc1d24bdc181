"""The interface of strategies that run ``fit`` in another way than as one program over their devices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any


class SkipCall(Exception):
    """Raised to skip a call in this process. The process continues after the call.

    Args:
        returned: the value that the call returns.
    """

    def __init__(self, returned: Any) -> None:
        super().__init__()
        self.returned = returned


class RepeatCall(Exception):
    """Raised in a callback of ``fit`` to end this call of it, and to make the same call again."""


class AbstractRuns(ABC):
    """Controls how a model's ``fit``, ``evaluate`` and ``predict`` run.

    All methods are called from the thread that calls the model's method.
    """

    @abstractmethod
    def wrap_call(self, model: Any, method: str, arguments: dict[str, Any]) -> AbstractContextManager[None]:
        """Returns a context manager in which the call is made.

        Args:
            model: the model, compiled within the strategy's scope. The scope is entered.
            method: "fit", "evaluate" or "predict".
            arguments: the arguments of the call, by name. They may be changed here; the method is called with the
                changed arguments.

        Raises:
            InvalidInputError: the strategy does not support the call.
            SkipCall: the call was made elsewhere, and is skipped here. Entering the context may raise it.
        """

    @abstractmethod
    def step_function(self, model: Any, kind: str) -> Callable[[Any, Any], Any] | None:
        """Returns the function that Keras's trainer calls for each step.

        Args:
            model: the model.
            kind: "train", "test" or "predict".

        Returns:
            A function of state and iterator that returns logs (or outputs) and state; None for Keras's own function.
        """
