"""What an observer of a training's steps is told."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import final


@final
class Wait(StrEnum):
    """What the thread that runs ``fit`` waits for."""

    DATA = "data"
    """The next batch, as it is read and before it is placed on the devices."""
    CHECKPOINT = "checkpoint"
    """A checkpoint that is saved or restored."""


@final
@dataclass(frozen=True, kw_only=True)
class Execution:
    """An execution that is about to begin.

    Attributes:
        num_before: the number of steps that have begun before, in this call of ``fit``.
        num_steps: the number of its own steps.
        num_rows: the number of rows of its first batch, over all processes.
        settle: waits until all steps that have begun before are computed.
    """

    num_before: int
    num_steps: int
    num_rows: int
    settle: Callable[[], None]


class AbstractStepObserver(ABC):
    """Is told about the steps of ``fit``, in the thread that runs them."""

    @abstractmethod
    def before_execution(self, execution: Execution) -> None:
        """Is called before each execution: one step, or ``steps_per_execution`` of them.

        Args:
            execution: the execution.
        """

    @abstractmethod
    def waited(self, kind: Wait, *, began_s: float, ended_s: float) -> None:
        """Is called after a wait.

        Args:
            kind: what the thread waited for.
            began_s: when it began to wait, by `time.monotonic`, in seconds.
            ended_s: when the wait ended, by the same clock.
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
