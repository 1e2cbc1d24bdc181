"""What workers and the coordinator say to each other: the kinds of messages, and the names of their arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, final

import numpy as np

from lockstep.errors import LockstepError

READY: Final = "ready"
NEXT: Final = "next"
AGAIN: Final = "again"
NOTHING: Final = "nothing"
STILL: Final = "still"
"""Asked by a worker that waits for servers, and answered by `STOP` where it need not any more."""
PUSHED: Final = "pushed"
"""Said by a worker that has pushed, and has waited for the servers' answer for long."""
MISFIT: Final = "misfit"
CLOSURE: Final = "closure"
STOP: Final = "stop"
STAGE: Final = "stage"
"""Asked by a worker with the stage that its script is at; answered by `GO_ON` where the coordinator has left that."""
GO_ON: Final = "go on"
"""Said in place of `STOP` where the script has a further stage: with what the last one has come to."""
WATCH: Final = "watch"
"""Asked by those who look on, and answered when it is over."""


@final
class ReplacedError(LockstepError):
    """A worker's place was taken by another process of its name, or given up: this one is not heard any more.

    Args:
        name: the worker's.
    """

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} was taken for lost, or has a successor: another process that says it is {name}",
            action="have one process for each task of TF_CONFIG",
        )


def numbered(arrays: Mapping[str, np.ndarray[Any, Any]], index: int) -> dict[str, np.ndarray[Any, Any]]:
    """Returns the arrays of one of the closures that a message tells of, by their names in the message."""
    return {f"{index}.{name}": array for name, array in arrays.items()}


def arrays_of(arrays: Mapping[str, np.ndarray[Any, Any]], index: int) -> dict[str, np.ndarray[Any, Any]]:
    """Returns the arrays of one of the closures that a message tells of, by their names there."""
    prefix = f"{index}."
    return {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}
