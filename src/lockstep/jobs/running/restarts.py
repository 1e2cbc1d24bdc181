"""Defines restart policies: after which ends a job is restarted, and how often.

This document is separate from the training input, because orders carry it to the engine: a runner, which starts with
    each replica, needs nothing else of the training input.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self, final

from pydantic import Field, model_validator

from lockstep.jobs.parsing.fields import AbstractDocument, Flag, Int32
from lockstep.jobs.parsing.rules import Violation, raise_violations


@final
class RestartCondition(StrEnum):
    """The ends after which a job is restarted."""

    NEVER = "NEVER"
    """After no end."""
    ON_MACHINE_ERROR = "ON_MACHINE_ERROR"
    """After ends that the job did not cause itself: a lost node, a killed program."""
    ON_FAILURE = "ON_FAILURE"
    """After every failure."""


@final
class RestartPolicy(AbstractDocument):
    """Whether a failed job is restarted: all of its replicas, or, if it has parameter servers, a single one alone.

    Attributes:
        condition: the ends after which the job is restarted.
        max_restarts: the maximum number of restarts; those of the whole gang and those of single replicas count
            together.
        whole_job: whether all replicas are restarted even if only a worker in a job with parameter servers failed.
        servers_alone: whether a lost parameter server is launched again alone, as such a worker is.
        workers_move: whether such a worker continues alone on another machine, with another address, if its own machine
            is gone.
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
