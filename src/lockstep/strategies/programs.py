"""Lets a function inspect each compiled training step before its first run, as `lockstep plan` does.

Code that compiles a step calls `announce` right before the step runs for the first time. This has no effect unless a
function was registered with `watch`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, final

PARAMETERS: Final = "parameters"
OPTIMIZER: Final = "optimizer"
OTHER_STATE: Final = "other state"
STATE: Final = "state"
"""The whole state, if its parts cannot be distinguished."""
BATCH: Final = "batch"
LABELS: Final = (PARAMETERS, OPTIMIZER, OTHER_STATE, STATE, BATCH)


@final
@dataclass(frozen=True, kw_only=True)
class Program:
    """A compiled training step that is about to run.

    Attributes:
        name: a description in words, such as "fit of resnet".
        step: the jitted function.
        args: its positional arguments: structures of arrays, placed on the devices as in the run.
        labels: the contents of the arguments: a prefix of the structure of `args`, with one of this module's labels at
            each leaf.
        num_steps: the number of steps of an epoch; None if unknown.
        donates: whether the first argument's buffers are reused for the result.
        num_rows: the number of rows of the global batch; None if it is dim 0 of the batch's first array.
    """

    name: str
    step: Any
    args: tuple[Any, ...]
    labels: tuple[Any, ...]
    num_steps: int | None = None
    donates: bool = True
    num_rows: int | None = None


_watchers: list[Callable[[Program], None]] = []


@contextmanager
def watch(watcher: Callable[[Program], None]) -> Generator[None]:
    """Registers a function within a ``with`` block. It is called with each training step before the step's first run.

    Args:
        watcher: the function. It may be called in any thread of this process. An error that it raises ends the
            training.
    """
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


def is_watched() -> bool:
    """Whether a function is registered. If there is none, callers need not describe their steps."""
    return bool(_watchers)


def announce(program: Program) -> None:
    """Passes a step that is about to run for the first time to the registered functions.

    Args:
        program: the step.
    """
    for watcher in tuple(_watchers):
        watcher(program)
