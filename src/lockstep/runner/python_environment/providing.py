"""A replica's Python environment, before its program starts."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from lockstep.jobs.running.orders import ReplicaOrder
from lockstep.runner.python_environment.building import EnvironmentBuilder
from lockstep.runner.python_environment.cache import EnvironmentCache, Lease
from lockstep.runner.python_environment.sources import find_source
from lockstep.runner.waiting import wait_for

BUILD_TIMEOUT_S: Final = 3600.0


def provide_environment(
    order: ReplicaOrder, *, folder: Path, control: int, say: Callable[[str], object]
) -> Lease | None:
    """Returns a program's Python environment, built if need be; None where it needs none but the node's. Blocks.

    Args:
        order: the replica's order.
        folder: the program's folder.
        control: a file descriptor; something to be read there, or its end, means "stop".
        say: called with each line of what is being done.

    Raises:
        StoppedError: something came on `control`.
        MissingInputError: the file that the job names is not there.
        InvalidInputError: it cannot be built as it is asked for.
        UnavailableError: an index of packages does not answer.
        StorageError: the disk is full, or it took longer than `BUILD_TIMEOUT_S`.
    """
    source = find_source(folder, asked=order.python_environment)
    if source is None:
        return None
    cache = EnvironmentCache(Path(order.environment_cache))
    builder = EnvironmentBuilder(cache, node=os.environ, user=order.user, say=say)
    what = f"the Python environment of {source.name} was not built"
    try:
        return wait_for(lambda: builder.provide(source), control=control, timeout_s=BUILD_TIMEOUT_S, what=what)
    finally:
        builder.abort()  # nothing where it has ended
