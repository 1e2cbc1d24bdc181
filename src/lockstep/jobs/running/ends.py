"""Why a job ended, in a word that programs can read, and whether it is worth another try.

Exit codes tell the user's errors from the machine's as Kubeflow's training operator does: 130, 137 and 143 (ended by
SIGINT, SIGKILL, SIGTERM) and 138, by which a program asks for it, are worth another try, others are not. So is the exit
code with which Lockstep's strategies end when a peer is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, final

from lockstep.errors import PeerLostError
from lockstep.jobs.running.orders import Fault, GangStatus, ProgramEnd, ReplicaStatus
from lockstep.jobs.running.restarts import RestartCondition, RestartPolicy

RETRYABLE_EXIT_CODES: Final = frozenset({130, 137, 138, 143, PeerLostError.exit_code})
"""Exit codes of programs that did nothing wrong themselves, or that ask for another try."""

RETRYABLE_SIGNALS: Final = frozenset({"SIGINT", "SIGKILL", "SIGTERM", "SIGHUP", "SIGPWR"})
"""Signals that come from outside a program; others, such as SIGSEGV, are its own doing."""

_GIB: Final = 1 << 30


@final
class EndKind(StrEnum):
    """What ended a job that did not succeed."""

    USER_ERROR = "USER_ERROR"
    """Its program failed, or cannot be started as it is."""
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    """The system killed a program for want of memory."""
    MACHINE_ERROR = "MACHINE_ERROR"
    """Something beside the program failed: its runner, its bucket, or somebody killed it."""
    STUCK = "STUCK"
    """A program gave no sign for as long as it may: no heartbeat, no line of output."""
    NODE_LOST = "NODE_LOST"
    """A node, or the engine on it, is gone."""
    PREEMPTED = "PREEMPTED"
    """Its provider took back a machine that it gives for a lower price, and may take back at any time."""
    PROVISIONING_TIMEOUT = "PROVISIONING_TIMEOUT"
    """Its machines did not come up for as long as they may take."""
    MAX_RUNNING_TIME = "MAX_RUNNING_TIME"
    """It ran for as long as it may."""
    MAX_WAIT_TIME = "MAX_WAIT_TIME"
    """It waited for as long as it may."""
    CANCELLED = "CANCELLED"
    """Somebody asked for its end."""


MACHINE_KINDS: Final = frozenset({EndKind.MACHINE_ERROR, EndKind.STUCK, EndKind.NODE_LOST, EndKind.PREEMPTED})
"""What is not the job's own doing; or need not be: most programs that hang wait for somebody who is gone."""


@final
@dataclass(frozen=True, kw_only=True)
class EndReason:
    """Why a job, or one start of its gang, ended.

    Attributes:
        kind: in a word.
        details: what is known beside it: the exit code, the replica.
    """

    kind: EndKind
    details: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The form in which it is recorded: ``USER_ERROR(exit 3, master-0)``."""
        return f"{self.kind.value}({', '.join(self.details)})" if self.details else self.kind.value


def why_ended(status: GangStatus) -> EndReason:
    """Says why a gang that failed did.

    Args:
        status: a gang that has ended otherwise than by success or on request.
    """
    culprit = None if status.end is None else status.end.culprit
    replica = next((replica for replica in status.replicas if replica.name == culprit), None)
    if replica is None or replica.end is None:  # the supervisor itself failed
        return EndReason(kind=EndKind.MACHINE_ERROR)
    return why_replica_ended(replica, end=replica.end)


def why_replica_ended(replica: ReplicaStatus, *, end: ProgramEnd) -> EndReason:
    """Says why a replica ended.

    Args:
        replica: the replica.
        end: how it ended, otherwise than by success or on request.
    """
    kind = _kind(end)
    return EndReason(kind=kind, details=_details(kind, replica, end))


def is_worth_another_try(reason: EndReason, *, policy: RestartPolicy, num_restarts: int) -> bool:
    """Says whether a job, or a replica of it alone, is started again.

    Args:
        reason: why it ended.
        policy: what its owner wants.
        num_restarts: how often the job was started again already, all of it or a replica alone.
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
