"""What a gang supervisor does next: pure decisions over the statuses of a gang's replicas."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, final

from lockstep.jobs.running.ends import is_worth_another_try, why_replica_ended
from lockstep.jobs.running.orders import (
    GangEnd,
    GangOrder,
    GangOutcome,
    GangPhase,
    ReplicaOrder,
    ReplicaPhase,
    ReplicaRestart,
    ReplicaStatus,
)

LINGER_S: Final = 30.0
"""How long others may go on after the leader's success: workers leave their last collective in order, an evaluator
evaluates the last checkpoint."""


@final
@dataclass(frozen=True, kw_only=True)
class Step:
    """What to do now.

    Attributes:
        phase: how far the gang is.
        stop: names of replicas to stop.
        restarts: by their names, the replicas to launch again while the others run on.
        displaced: names of replicas to launch again as soon as they have another machine, while the others run on.
        end: how the gang ended, None while a replica lives.
    """

    phase: GangPhase
    stop: tuple[str, ...] = ()
    restarts: Mapping[str, ReplicaRestart] = field(default_factory=dict[str, ReplicaRestart])
    displaced: tuple[str, ...] = ()
    end: GangEnd | None = None


def next_step(
    order: GangOrder,
    *,
    statuses: Mapping[str, ReplicaStatus],
    stop_requested: bool,
    now_s: float,
    lost_nodes: Collection[str] = (),
) -> Step:
    """Decides the next step of a gang.

    A replica that failed ends the gang: the others would wait for it for ever. Beside parameter servers they would not:
    there a worker, or an evaluator, that is worth another try is launched again alone, and a server whose job wants it
    so. One of these workers or evaluators whose machine is gone may wait for another one, if the order says for how
    long: which counts only while no worker is left. The leader's success is the job's; its parameter servers then
    have nothing left to do, and its workers and evaluators `LINGER_S` to finish.

    Args:
        order: the gang as ordered; its first replica leads.
        statuses: the last known status by replica name; a replica without one is not placed yet.
        stop_requested: whether somebody asked for the gang's end.
        now_s: seconds since 1970 UTC.
        lost_nodes: names of replicas whose nodes are lost: they cannot be launched again there.
    """
    roles = {replica.name: replica.role for replica in order.replicas}
    known = [statuses[name] for name in roles if name in statuses]
    living = [status.name for status in known if status.phase is not ReplicaPhase.ENDED]
    leader = statuses.get(order.replicas[0].name)
    succeeded = leader is not None and leader.end is not None and leader.end.succeeded
    restarts, displaced = _restarts(order, known, lost_nodes=() if succeeded else lost_nodes, now_s=now_s)
    failure = _first_failure([status for status in known if status.name not in {*restarts, *displaced}])
    if stop_requested or failure is not None or (leader is not None and leader.phase is ReplicaPhase.ENDED):
        restarts, displaced = {}, ()
    phase = _phase(known, num_replicas=len(roles), num_living=len(living) + len(restarts) + len(displaced))
    if phase is GangPhase.ENDED:
        return Step(phase=phase, end=_end(leader, failure, stop_requested=stop_requested))
    if stop_requested or failure is not None:
        return Step(phase=phase, stop=tuple(living))
    if leader is not None and succeeded:
        lingered = now_s - (leader.ended_time_s or now_s) >= LINGER_S
        done = [name for name in living if lingered or roles[name] == "ps"]
        return Step(phase=phase, stop=tuple(done))
    return Step(phase=phase, restarts=restarts, displaced=displaced)


def after_report(known: ReplicaStatus | None, report: ReplicaStatus) -> ReplicaStatus:
    """Returns what is known of a replica after a report, which may come late.

    Args:
        known: what was known of it; None before its first report.
        report: what its launcher says.
    """
    if known is None or len(report.restarts) > len(known.restarts):
        return report
    # The last word stands; and what an earlier launch still says counts no more.
    is_late = known.phase is ReplicaPhase.ENDED or len(report.restarts) < len(known.restarts)
    return known if is_late else report


def order_again(order: ReplicaOrder, *, last: ReplicaStatus, restart: ReplicaRestart) -> ReplicaOrder:
    """Returns the order for a replica's next launch: as before, going on from how it ended.

    Args:
        order: the order of its first launch.
        last: its last status.
        restart: what `next_step` decided.
    """
    return replace(order, earlier=replace(last, restarts=(*last.restarts, restart)))


def restart_alone(order: GangOrder) -> frozenset[str]:
    """Returns the names of the replicas that are launched again alone, while the others run on.

    Those are workers beside parameter servers: what each does, it does without the others, and its state is on the
    servers; and evaluators, whom nobody waits for. A leader is not: it hands the work out. Servers are where the job
    says that a new one is given what it lacks.
    """
    policy = order.restart_policy
    if policy is None or policy.whole_job or all(replica.role != "ps" for replica in order.replicas):
        return frozenset()
    kept = () if policy.servers_alone else ("ps",)
    return frozenset(replica.name for replica in order.replicas[1:] if replica.role not in kept)


def movable(order: GangOrder) -> frozenset[str]:
    """Returns the names of the replicas that go on alone at another address, or on another machine, where they must.

    Servers are none of them: who uses one knows its address.
    """
    if order.move_within_s is None:
        return frozenset()
    alone = restart_alone(order)
    return frozenset(replica.name for replica in order.replicas if replica.name in alone and replica.role != "ps")


def _restarts(
    order: GangOrder, known: Sequence[ReplicaStatus], *, lost_nodes: Collection[str], now_s: float
) -> tuple[dict[str, ReplicaRestart], tuple[str, ...]]:
    """Returns the failed replicas that can be launched again alone within the job's budget, the first to fail first.

    Apart from them, those of which this holds once they have another machine.
    """
    policy = order.restart_policy
    alone = restart_alone(order).difference(lost_nodes)
    waiting = _may_wait(order, known, now_s=now_s).intersection(lost_nodes)
    if policy is None or not (alone or waiting):
        return {}, ()
    num_restarts = order.num_restarts + sum(len(status.restarts) for status in known)
    found: dict[str, ReplicaRestart] = {}
    displaced: list[str] = []
    for status in sorted(_failures(known), key=_end_time_s):
        assert status.end is not None
        reason = why_replica_ended(status, end=status.end)
        num_coming = num_restarts + len(found) + len(displaced)
        if not is_worth_another_try(reason, policy=policy, num_restarts=num_coming):
            continue
        if status.name in alone:
            number = num_restarts + len(found) + 1
            found[status.name] = ReplicaRestart(number=number, time_s=now_s, reason=str(reason))
        elif status.name in waiting:
            displaced.append(status.name)
    return found, tuple(displaced)


def _may_wait(order: GangOrder, known: Sequence[ReplicaStatus], *, now_s: float) -> frozenset[str]:
    """Returns the names of the replicas that may wait for another machine; a worker as long as any of them works."""
    within_s = order.move_within_s
    if within_s is None:
        return frozenset()
    workers = {replica.name for replica in order.replicas if replica.role == "worker"}
    is_overdue = all(
        status.phase is ReplicaPhase.ENDED and now_s - _end_time_s(status) > within_s
        for status in known
        if status.name in workers
    )
    return movable(order) - workers if is_overdue else movable(order)


def _phase(known: Sequence[ReplicaStatus], *, num_replicas: int, num_living: int) -> GangPhase:
    if len(known) < num_replicas:
        return GangPhase.PLACING
    if num_living == 0:
        return GangPhase.ENDED
    started = all(status.started_time_s is not None for status in known)
    return GangPhase.RUNNING if started else GangPhase.STARTING


def _failures(known: Sequence[ReplicaStatus]) -> list[ReplicaStatus]:
    return [s for s in known if s.end is not None and not s.end.succeeded and not s.end.stopped]


def _first_failure(known: Sequence[ReplicaStatus]) -> ReplicaStatus | None:
    return min(_failures(known), key=_end_time_s, default=None)


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
