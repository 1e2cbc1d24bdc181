"""Determines why a job ended, as a short code that programs can read, and whether to restart it.

Exit codes distinguish the user's errors from those of the machine, as in Kubeflow's training operator. A program is
restarted after 130, 137 and 143 (ended by SIGINT, SIGKILL or SIGTERM), after 138, with which a program asks for a
restart, and after the exit code with which Lockstep's strategies end when a peer is lost. Other exit codes are user
errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, final

from lockstep.errors import PeerLostError
from lockstep.jobs.running.orders import Fault, GangStatus, ProgramEnd, ReplicaStatus
from lockstep.jobs.running.restarts import RestartCondition, RestartPolicy

RETRYABLE_EXIT_CODES: Final = frozenset({130, 137, 138, 143, PeerLostError.exit_code})
"""Exit codes of programs that did nothing wrong themselves, or that ask for a restart."""

RETRYABLE_SIGNALS: Final = frozenset({"SIGINT", "SIGKILL", "SIGTERM", "SIGHUP", "SIGPWR"})
"""Signals that come from outside a program; a program causes the others, such as SIGSEGV, itself."""

_GIB: Final = 1 << 30


@final
class EndKind(StrEnum):
    """The cause of the end of a job that did not succeed."""

    USER_ERROR = "USER_ERROR"
    """The job's program failed, or cannot be started."""
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    """The system killed a program because it was out of memory."""
    MACHINE_ERROR = "MACHINE_ERROR"
    """Something other than the program failed: its runner or its bucket; or somebody killed the program."""
    STUCK = "STUCK"
    """A program sent no heartbeat and printed no line for the time that its job allows."""
    NODE_LOST = "NODE_LOST"
    """A node, or the engine on it, was lost."""
    PREEMPTED = "PREEMPTED"
    """The provider took back a spot machine, which is cheaper because the provider may do so at any time."""
    PROVISIONING_TIMEOUT = "PROVISIONING_TIMEOUT"
    """The job's machines did not come up within the time allowed."""
    MAX_RUNNING_TIME = "MAX_RUNNING_TIME"
    """The job reached its maximum running time."""
    MAX_WAIT_TIME = "MAX_WAIT_TIME"
    """The job reached its maximum wait time."""
    CANCELLED = "CANCELLED"
    """Somebody cancelled the job."""
    STOPPED_EARLY = "STOPPED_EARLY"
    """A search stopped the trial, because it was worse than others. Its last value counts."""
    SEARCH_ENDED = "SEARCH_ENDED"
    """The search of the trial ended before the trial did."""
    TRIALS_FAILED = "TRIALS_FAILED"
    """So many trials of the search failed that it ended."""


MACHINE_KINDS: Final = frozenset({EndKind.MACHINE_ERROR, EndKind.STUCK, EndKind.NODE_LOST, EndKind.PREEMPTED})
"""Ends that the job itself did not cause, or may not have caused: most stuck programs wait for a lost peer."""


@final
@dataclass(frozen=True, kw_only=True)
class EndReason:
    """Why a job, or one attempt of it, ended.

    Attributes:
        kind: the cause.
        details: further details: the exit code, the replica.
    """

    kind: EndKind
    details: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Returns the form in which the reason is recorded: ``USER_ERROR(exit 3, master-0)``."""
        return f"{self.kind.value}({', '.join(self.details)})" if self.details else self.kind.value


def end_reason_of(status: GangStatus) -> EndReason:
    """Returns why a gang failed.

    Args:
        status: the status of a gang that ended, but neither successfully nor on request.
    """
    culprit = None if status.end is None else status.end.culprit
    replica = next((replica for replica in status.replicas if replica.name == culprit), None)
    if replica is None or replica.end is None:  # the supervisor itself failed
        return EndReason(kind=EndKind.MACHINE_ERROR)
    return why_replica_ended(replica, end=replica.end)


def why_replica_ended(replica: ReplicaStatus, *, end: ProgramEnd) -> EndReason:
    """Returns why a replica failed.

    Args:
        replica: the replica's status.
        end: how the replica ended: neither successfully nor on request.
    """
    kind = _kind(end)
    return EndReason(kind=kind, details=_details(kind, replica, end))


def should_restart(reason: EndReason, *, policy: RestartPolicy, num_restarts: int) -> bool:
    """Returns whether a job, or one replica of it alone, is restarted.

    Args:
        reason: why the job or replica ended.
        policy: the job's restart policy.
        num_restarts: the number of earlier restarts of the job, both of the whole gang and of single replicas.
    """
    if num_restarts >= policy.max_restarts or policy.condition is RestartCondition.NEVER:
        return False
    if reason.kind in MACHINE_KINDS:
        return True
    failed = reason.kind in (EndKind.USER_ERROR, EndKind.OUT_OF_MEMORY)
    return failed and policy.condition is RestartCondition.ON_FAILURE


def _kind(end: ProgramEnd) -> EndKind:
    match end.fault:
        case Fault.MEMORY:
            return EndKind.OUT_OF_MEMORY
        case Fault.MACHINE:
            return EndKind.MACHINE_ERROR
        case Fault.STUCK:
            return EndKind.STUCK
        case Fault.NODE:
            return EndKind.NODE_LOST
        case Fault.PROGRAM:
            outside = end.exit_code in RETRYABLE_EXIT_CODES or end.signal in RETRYABLE_SIGNALS
            return EndKind.MACHINE_ERROR if outside else EndKind.USER_ERROR


def _details(kind: EndKind, replica: ReplicaStatus, end: ProgramEnd) -> tuple[str, ...]:
    name = replica.name.replace("-replica-", "-")
    if kind is EndKind.OUT_OF_MEMORY:
        peak, limit = replica.usage.peak_memory_bytes / _GIB, end.memory_limit_bytes / _GIB
        return name, f"{peak:.1f} of {limit:.1f} GiB"
    if kind is EndKind.STUCK:
        return (name,) if end.problem is None else (name, end.problem)
    if end.exit_code is not None:
        return f"exit {end.exit_code}", name
    return (end.signal, name) if end.signal is not None else (name,)
