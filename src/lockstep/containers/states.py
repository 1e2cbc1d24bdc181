"""How a container is, as the engine tells it."""

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
        running: whether its program runs.
        started: whether its program ever ran.
        exit_code: of its program, once that has ended; 128 and a signal's number where one ended it.
        pid: process id of its first process on this machine, None where there is none.
        starved: whether the engine saw it killed for want of memory.
        error: why it could not be started, "" where that is not known.
    """

    running: bool
    started: bool
    exit_code: int
    pid: int | None
    starved: bool
    error: str


def inspect(engine: ContainerEngine, name: str) -> ContainerState | None:
    """Returns how a container is; None if there is none of that name.

    Raises:
        ContainerEngineError: the engine does not answer as it should.
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
            starved=bool(document["OOMKilled"]),
            error=str(document["Error"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ContainerEngineError(f"{engine.kind} inspect gave something else than a state: {error!r}") from None
