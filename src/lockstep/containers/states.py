"""Reads the state of a container from the engine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, cast, final

from lockstep.containers.engine import ContainerEngine
from lockstep.errors import ContainerEngineError

_NEVER: Final = "0001-01-01"


@final
@dataclass(frozen=True, kw_only=True)
class ContainerState:
    """The state of one container.

    Attributes:
        running: whether the container's program is running.
        started: whether the program has ever run.
        exit_code: the exit code of the program, once it has ended; 128 plus the signal's number if a signal ended it.
        pid: the process id of the container's first process on this machine; None if there is none.
        out_of_memory: whether the engine reports that it was killed because memory ran out.
        error: the reason why it could not be started; "" if it is not known.
    """

    running: bool
    started: bool
    exit_code: int
    pid: int | None
    out_of_memory: bool
    error: str


def inspect(engine: ContainerEngine, name: str) -> ContainerState | None:
    """Returns the state of a container; None if there is no container with this name.

    Raises:
        ContainerEngineError: the engine does not answer, or its answer cannot be parsed.
    """
    answer = engine.call(["container", "inspect", "--format", "{{json .State}}", name])
    if answer.code:
        if "no such" in answer.errors.lower():
            return None
        raise ContainerEngineError(f"{engine.kind} cannot inspect {name}: {answer.last_line}")
    try:
        document = cast("dict[str, Any]", json.loads(answer.output))
        return ContainerState(
            running=bool(document["Running"]),
            started=not str(document["StartedAt"]).startswith(_NEVER),
            exit_code=int(document["ExitCode"]),
            pid=int(document["Pid"]) or None,
            out_of_memory=bool(document["OOMKilled"]),
            error=str(document["Error"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ContainerEngineError(f"{engine.kind} inspect returned an unexpected document: {error!r}") from None
