"""What a gang supervisor does next: pure decisions over the statuses of a gang's replicas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

from lockstep.jobs.orders import (
    GangEnd,
    GangOrder,
    GangOutcome,
    GangPhase,
    ReplicaPhase,
    ReplicaStatus,
)

LINGER_S: Final = 30.0
"""How long workers may go on after the leader's success, to leave their last collective in order."""


@final
@dataclass(frozen=True, kw_only=True)
class Step:
    """What to do now.

    Attributes:
        phase: how far the gang is.
        stop: names of replicas to stop.
        end: how the gang ended, None while a replica lives.
    """

    phase: GangPhase
    stop: tuple[str, ...] = ()
    end: GangEnd | None = None


def next_step(order: GangOrder, *, statuses: Mapping[str, ReplicaStatus], stop_requested: bool, now_s: float) -> Step:
    """Decides the next step of a gang of synchronous replicas.

    A replica that failed ends the gang: the others would wait for it for ever. The leader's success is the job's; its
    parameter servers and evaluators then have nothing left to do, and its workers `LINGER_S` to finish.

    Args:
        order: the gang as ordered; its first replica leads.
        statuses: the last known status by replica name; a replica without one is not placed yet.
        stop_requested: whether somebody asked for the gang's end.
        now_s: seconds since 1970 UTC.
    """
    roles = {replica.name: replica.role for replica in order.replicas}
    known = [statuses[name] for name in roles if name in statuses]
    living = [status.name for status in known if status.phase is not ReplicaPhase.ENDED]
    phase = _phase(known, num_replicas=len(roles), num_living=len(living))
    leader = statuses.get(order.replicas[0].name)
    failure = _first_failure(known)
    if phase is GangPhase.ENDED:
        return Step(phase=phase, end=_end(leader, failure, stop_requested=stop_requested))
    if stop_requested or failure is not None:
        return Step(phase=phase, stop=tuple(living))
    if leader is not None and leader.end is not None and leader.end.succeeded:
        lingered = now_s - (leader.ended_time_s or now_s) >= LINGER_S
        done = [name for name in living if lingered or roles[name] in ("ps", "evaluator")]
        return Step(phase=phase, stop=tuple(done))
    return Step(phase=phase)


def _phase(known: Sequence[ReplicaStatus], *, num_replicas: int, num_living: int) -> GangPhase:
    if len(known) < num_replicas:
        return GangPhase.PLACING
    if num_living == 0:
        return GangPhase.ENDED
    started = all(status.started_time_s is not None for status in known)
    return GangPhase.RUNNING if started else GangPhase.STARTING


def _first_failure(known: Sequence[ReplicaStatus]) -> ReplicaStatus | None:
    failures = [s for s in known if s.end is not None and not s.end.succeeded and not s.end.stopped]
    return min(failures, key=_end_time_s, default=None)


def _end_time_s(status: ReplicaStatus) -> float:
    return status.ended_time_s or 0.0


def _end(leader: ReplicaStatus | None, failure: ReplicaStatus | None, *, stop_requested: bool) -> GangEnd:
    assert leader is not None
    assert leader.end is not None
    # What came first counts: a worker that fails after the leader is done has nothing left to spoil.
    if leader.end.succeeded and (failure is None or _end_time_s(leader) <= _end_time_s(failure)):
        return GangEnd(outcome=GangOutcome.SUCCEEDED)
    if failure is not None:
        assert failure.end is not None
        return GangEnd(
            outcome=GangOutcome.FAILED,
            reason=f"replica {failure.name}: {failure.end.describe()}",
            culprit=failure.name,
        )
    reason = "stopped on request" if stop_requested else f"replica {leader.name}: {leader.end.describe()}"
    return GangEnd(outcome=GangOutcome.STOPPED, reason=reason)
