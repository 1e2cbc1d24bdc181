"""Where each compiled training step passes before its first run, so that somebody can look at it: `lockstep plan` does.

Whoever compiles a step calls `announce` right before it runs for the first time. Nothing happens unless a function
was registered by `watch`.
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
"""All of it, where nobody can tell its parts."""
BATCH: Final = "batch"
LABELS: Final = (PARAMETERS, OPTIMIZER, OTHER_STATE, STATE, BATCH)


@final
@dataclass(frozen=True, kw_only=True)
class Program:
    """A compiled training step, about to run.

    Attributes:
        name: what it is in words, such as "fit of resnet".
        step: the jitted function.
        args: its positional arguments: structures of arrays, laid out over the devices as they will be.
        labels: what the arguments hold: a prefix of the structure of `args` with one of this module's labels at each
            leaf.
        num_steps: steps of an epoch; None where nobody knows.
        donates: whether the first argument's buffers become the result's.
        num_rows: rows of the global batch; None where they are dim 0 of its first array.
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
    """Has a function called with each training step before its first run, in any thread of this process.

    Args:
        watcher: the function; what it raises ends the training.
    """
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


def is_watched() -> bool:
    """Whether anybody wants to see programs: a step that nobody watches costs nothing more."""
    return bool(_watchers)


def announce(program: Program) -> None:
    """Shows a step that is about to run for the first time to whoever watches.

    Args:
        program: the step.
    """
    for watcher in tuple(_watchers):
        watcher(program)
