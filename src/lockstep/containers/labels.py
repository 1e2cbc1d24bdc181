"""The labels that mark a container as a job's, so that it can be identified after its runner has died."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self, final

from lockstep.processes import ProcessIdentity

SPOOL: Final = "lockstep.spool"
_JOB: Final = "lockstep.job"
_REPLICA: Final = "lockstep.replica"
_ATTEMPT: Final = "lockstep.attempt"
_RUNNER: Final = "lockstep.runner"


def current_runner() -> str:
    """Returns the label value that identifies this process: the namespace of its process id, the id, its start time."""
    me = ProcessIdentity.of_self()
    return f"{_pid_namespace()} {me.pid} {me.start}"


@final
@dataclass(frozen=True, kw_only=True)
class JobLabels:
    """The labels of one container.

    Attributes:
        job: the name of the job.
        replica: the name of the replica.
        attempt: the number of the gang attempt.
        spool: the replica's spool folder, which is unique to the replica, attempt and job.
        runner: the runner that watches the container, as `current_runner` returns it.
    """

    job: str
    replica: str
    attempt: int
    spool: str
    runner: str

    def to_mapping(self) -> Mapping[str, str]:
        """Returns the labels by name."""
        return {
            _JOB: self.job,
            _REPLICA: self.replica,
            _ATTEMPT: str(self.attempt),
            SPOOL: self.spool,
            _RUNNER: self.runner,
        }

    @classmethod
    def from_mapping(cls, labels: Mapping[str, str]) -> Self | None:
        """Parses the result of `to_mapping`; None for the labels of a container that is not a job's."""
        attempt = labels.get(_ATTEMPT, "")
        if SPOOL not in labels or not attempt.isdecimal():
            return None
        return cls(
            job=labels.get(_JOB, ""),
            replica=labels.get(_REPLICA, ""),
            attempt=int(attempt),
            spool=labels[SPOOL],
            runner=labels.get(_RUNNER, ""),
        )

    @property
    def is_orphan(self) -> bool:
        """Whether its runner is known to be dead. False for another PID namespace, which cannot be checked."""
        namespace, _, rest = self.runner.partition(" ")
        pid, _, start = rest.partition(" ")
        if namespace != _pid_namespace() or not pid.isdecimal():
            return False
        return not ProcessIdentity(pid=int(pid), start=start).is_alive


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:  # not Linux: there is only one namespace
        return "-"
