"""Removes what dead runners left: a container outlives the process that started it, and is known by its labels."""

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
    """Ends and removes jobs' containers. Idempotent; blocks until none of them is left.

    Args:
        engine: where to look.
        accept: says by its labels whether a container is meant.
        timeout_s: how long the engine may take to remove them.

    Returns:
        The labels of those that were there.

    Raises:
        ContainerEngineError: the engine does not answer, or does not remove them.
    """
    found: dict[str, JobLabels] = {}
    deadline = time.monotonic() + timeout_s
    while left := {name: labels for name, labels in _labelled(engine).items() if accept(labels)}:
        found |= left
        if time.monotonic() > deadline:
            raise ContainerEngineError(f"{engine.kind} does not remove {', '.join(sorted(left))}")
        # Not `rm --force` alone: podman would give the program ten seconds.
        engine.call(kill(sorted(left), signal="KILL"))
        if engine.call(remove(sorted(left))).code:
            time.sleep(_PAUSE_S)
    return list(found.values())


def reap_spool(spool: str) -> None:
    """Removes the container of one replica, if it is there; does nothing where no engine answers."""
    with contextlib.suppress(ContainerEngineError):
        reap(open_engine(), accept=lambda labels: labels.spool == spool)


def reap_dead() -> list[JobLabels]:
    """Removes the containers of this machine whose runners are dead; none where no engine answers.

    Returns:
        The labels of those that were there.
    """
    with contextlib.suppress(ContainerEngineError):
        return reap(open_engine(), accept=lambda labels: labels.is_orphan)
    return []


def _labelled(engine: ContainerEngine) -> dict[str, JobLabels]:
    """Returns the labels of jobs' containers by id."""
    answer = engine.call(find(SPOOL))
    if answer.code:
        raise ContainerEngineError(f"{engine.kind} cannot list containers: {answer.last_line}")
    names = answer.output.split()
    if not names:
        return {}
    told = engine.call(["container", "inspect", "--format", "{{.Id}} {{json .Config.Labels}}", *names])
    # One that is removed meanwhile makes the exit code another; the others are told all the same.
    if told.code and "no such" not in told.errors.lower():
        raise ContainerEngineError(f"{engine.kind} cannot inspect containers: {told.last_line}")
    found: dict[str, JobLabels] = {}
    for line in told.output.splitlines():
        name, _, text = line.partition(" ")
        labels = JobLabels.from_mapping(cast("dict[str, str]", json.loads(text)))
        if labels is not None:
            found[name] = labels
    return found
