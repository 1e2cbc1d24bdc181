"""Provides a replica's Python environment before its program starts."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from lockstep.jobs.running.orders import ReplicaOrder
from lockstep.runner.control import Control
from lockstep.runner.python_environment.building import EnvironmentBuilder
from lockstep.runner.python_environment.cache import EnvironmentCache, Lease
from lockstep.runner.python_environment.sources import find_source
from lockstep.runner.waiting import wait_for

BUILD_TIMEOUT_S: Final = 3600.0


def provide_environment(
    order: ReplicaOrder, *, folder: Path, control: Control, report_line: Callable[[str], object]
) -> Lease | None:
    """Returns a program's Python environment, and builds it if necessary; None if it needs none. Blocks.

    Args:
        order: the order of the replica.
        folder: the folder of the program.
        control: the input on which "stop" arrives.
        report_line: called with each line of output.

    Raises:
        StoppedError: If "stop" arrives on `control`.
        MissingInputError: If the file that the job names does not exist.
        InvalidInputError: If the environment cannot be built as requested.
        UnavailableError: If a package index does not answer.
        StorageError: If the disk is full, or if building takes longer than `BUILD_TIMEOUT_S`.
    """
    source = find_source(folder, asked=order.python_environment)
    if source is None:
        return None
    cache = EnvironmentCache(Path(order.environment_cache))
    builder = EnvironmentBuilder(cache, node=os.environ, user=order.user, report_line=report_line)
    what = f"the Python environment of {source.name} was not built"
    try:
        return wait_for(lambda: builder.provide(source), control=control, timeout_s=BUILD_TIMEOUT_S, what=what)
    finally:
        builder.abort()  # does nothing if it has ended
