"""After which ends a job is started again, and how often: what its owner wants.

A document of its own beside the rest of what a job asks for, since orders carry it to the engine: a runner starts with
each replica, and needs nothing else of that.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self, final

from pydantic import Field, model_validator

from lockstep.jobs.parsing.fields import AbstractDocument, Flag, Int32
from lockstep.jobs.parsing.rules import Violation, raise_violations


@final
class RestartCondition(StrEnum):
    """After which ends a job is started again."""

    NEVER = "NEVER"
    """After none."""
    ON_MACHINE_ERROR = "ON_MACHINE_ERROR"
    """After those that are not its own doing: a lost node, a program that was killed."""
    ON_FAILURE = "ON_FAILURE"
    """After every failure."""


@final
class RestartPolicy(AbstractDocument):
    """Whether a job that failed is started again: all of its replicas, or one beside parameter servers alone.

    Attributes:
        condition: after which ends.
        max_restarts: how often at the most, both counted.
        whole_job: whether all replicas are started again for a worker beside parameter servers, too.
        servers_alone: whether a parameter server that is lost is launched again alone, as such a worker is.
        workers_move: whether such a worker goes on alone on another machine, with another address, where its own is
            gone.
    """

    condition: RestartCondition = RestartCondition.ON_MACHINE_ERROR
    max_restarts: Int32 = Field(default=3, ge=0, le=100)
    whole_job: Flag = False
    servers_alone: Flag = False
    workers_move: Flag = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        alone = {"serversAlone": self.servers_alone, "workersMove": self.workers_move}
        if self.whole_job and any(alone.values()):
            raise_violations(
                [
                    Violation(path=(name,), received=True, allowed="not together with wholeJob")
                    for name, is_wanted in alone.items()
                    if is_wanted
                ]
            )
        return self
