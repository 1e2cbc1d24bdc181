"""Removes containers of dead runners: a container outlives the process that started it, and its labels identify it."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from typing import Final, cast

from lockstep.containers.commands import find, kill, remove
from lockstep.containers.engine import ContainerEngine, open_engine
from lockstep.containers.labels import SPOOL, JobLabels
from lockstep.errors import ContainerEngineError

TIMEOUT_S: Final = 30.0
_PAUSE_S: Final = 0.2


def reap(
    engine: ContainerEngine, *, accept: Callable[[JobLabels], bool], timeout_s: float = TIMEOUT_S
) -> list[JobLabels]:
    """Ends and removes jobs' containers. Idempotent. Blocks until none of them is left.

    Args:
        engine: the engine whose containers are removed.
        accept: returns from a container's labels whether to remove it.
        timeout_s: how long the engine may take to remove the containers, in seconds.

    Returns:
        The labels of the removed containers.

    Raises:
        ContainerEngineError: the engine does not answer, or does not remove the containers.
    """
    found: dict[str, JobLabels] = {}
    deadline = time.monotonic() + timeout_s
    while left := {name: labels for name, labels in _job_containers(engine).items() if accept(labels)}:
        found |= left
        if time.monotonic() > deadline:
            raise ContainerEngineError(f"{engine.kind} does not remove {', '.join(sorted(left))}")
        # Not only `rm --force`, with which podman would wait ten seconds for the program to end.
        engine.call(kill(sorted(left), signal="KILL"))
        if engine.call(remove(sorted(left))).code:
            time.sleep(_PAUSE_S)
    return list(found.values())


def reap_spool(spool: str) -> None:
    """Removes the container of one replica, if there is one. Does nothing if no engine answers."""
    with contextlib.suppress(ContainerEngineError):
        reap(open_engine(), accept=lambda labels: labels.spool == spool)


def reap_dead() -> list[JobLabels]:
    """Removes the containers of this machine whose runners are dead. Does nothing if no engine answers.

    Returns:
        The labels of the removed containers.
    """
    with contextlib.suppress(ContainerEngineError):
        return reap(open_engine(), accept=lambda labels: labels.is_orphan)
    return []


def _job_containers(engine: ContainerEngine) -> dict[str, JobLabels]:
    """Returns the labels of jobs' containers by id."""
    answer = engine.call(find(SPOOL))
    if answer.code:
        raise ContainerEngineError(f"{engine.kind} cannot list containers: {answer.last_line}")
    names = answer.output.split()
    if not names:
        return {}
    inspected = engine.call(["container", "inspect", "--format", "{{.Id}} {{json .Config.Labels}}", *names])
    # If a container was removed meanwhile, the exit code is not 0, but the others are listed nevertheless.
    if inspected.code and "no such" not in inspected.errors.lower():
        raise ContainerEngineError(f"{engine.kind} cannot inspect containers: {inspected.last_line}")
    found: dict[str, JobLabels] = {}
    for line in inspected.output.splitlines():
        name, _, text = line.partition(" ")
        labels = JobLabels.from_mapping(cast("dict[str, str]", json.loads(text)))
        if labels is not None:
            found[name] = labels
    return found
