"""What an observer of a training's steps is told."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable


class AbstractStepObserver(ABC):
    """Is told about the steps of ``fit``, in the thread that runs them."""

    @abstractmethod
    def before_step(self, num_steps: int, *, settle: Callable[[], None]) -> None:
        """Is called before each execution: one step, or ``steps_per_execution`` of them.

        Args:
            num_steps: the number of steps that have begun before.
            settle: waits until all of these steps are computed.
        """

    @abstractmethod
    def after_epoch(self) -> None:
        """Is called when the last step of an epoch has begun, before validation."""

    @abstractmethod
    def end(self, num_steps: int, *, settle: Callable[[], None]) -> None:
        """Is called at the end of ``fit``, whether it succeeds or fails.

        Args:
            num_steps: the number of steps that have begun.
            settle: waits until all of these steps are computed.
        """
