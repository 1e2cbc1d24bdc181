"""What a strategy says that runs ``fit`` by other means than one program over its devices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any


class PassedOver(Exception):
    """A call that is not made in this process, which goes on behind it.

    Args:
        returned: what the call returns.
    """

    def __init__(self, returned: Any) -> None:
        super().__init__()
        self.returned = returned


class AbstractRuns(ABC):
    """Takes part in a model's ``fit``, ``evaluate`` and ``predict``.

    All of it is called from the thread that calls the model's method.
    """

    @abstractmethod
    def around(self, model: Any, method: str, arguments: dict[str, Any]) -> AbstractContextManager[None]:
        """Returns what a call is made within.

        Args:
            model: the model, compiled within the strategy's scope, which is entered.
            method: "fit", "evaluate" or "predict".
            arguments: the call's, by name; what is changed here the method is called with.

        Raises:
            InvalidInputError: the strategy cannot do what is asked for.
            PassedOver: the call was made elsewhere, and is not made here.
        """

    @abstractmethod
    def function(self, model: Any, kind: str) -> Callable[[Any, Any], Any] | None:
        """Returns what Keras's trainer calls for each step.

        Args:
            model: the model.
            kind: "train", "test" or "predict".

        Returns:
            A function of state and iterator that returns logs (or outputs) and state; None for Keras's own.
        """
