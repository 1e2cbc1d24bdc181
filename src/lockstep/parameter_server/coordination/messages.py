"""The messages between workers and the coordinator: their kinds, and the names of their arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, final

import numpy as np

from lockstep.errors import LockstepError

READY: Final = "ready"
NEXT: Final = "next"
GIVE_BACK: Final = "give back"
NO_WORK: Final = "no work"
CHECK_OVER: Final = "check over"
"""Sent by a worker that waits for servers. It is answered with `STOP` if the worker need not wait any more."""
AWAITING_SERVERS: Final = "awaiting servers"
"""Sent by a worker that has pushed, and has waited for the servers' answer for a long time."""
REJECTED_MODEL: Final = "rejected model"
CLOSURE: Final = "closure"
STOP: Final = "stop"
STAGE: Final = "stage"
"""Sent by a worker with the stage that its script is in.

Answered with `GO_ON` if the coordinator has left that stage.
"""
GO_ON: Final = "go on"
"""Sent in place of `STOP` if the script has another stage, with the results of the last one."""
WATCH: Final = "watch"
"""Sent by onlookers, and answered when the training is over."""


@final
class ReplacedError(LockstepError):
    """Another process has taken this worker's place, or the worker was given up. Its requests are rejected.

    Args:
        name: the name of the worker.
    """

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} was taken for lost, or has a successor: another process that says it is {name}",
            action="have one process for each task of TF_CONFIG",
        )


def numbered(arrays: Mapping[str, np.ndarray[Any, Any]], index: int) -> dict[str, np.ndarray[Any, Any]]:
    """Returns the arrays of the closure with this index in a message, with the names that they have in the message."""
    return {f"{index}.{name}": array for name, array in arrays.items()}


def arrays_of(arrays: Mapping[str, np.ndarray[Any, Any]], index: int) -> dict[str, np.ndarray[Any, Any]]:
    """Returns the arrays of the closure with this index in a message, with the names that they have in the closure."""
    prefix = f"{index}."
    return {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}
