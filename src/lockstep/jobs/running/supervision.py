"""Decides what a gang supervisor does next, from the statuses of the gang's replicas. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, final

from lockstep.jobs.running.ends import MACHINE_KINDS, EndKind, EndReason, should_restart, why_replica_ended
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
"""How long other replicas may continue after the leader's success, in seconds.

Workers leave their last collective in order, and an evaluator evaluates the last checkpoint.
"""


MAX_SERVER_RESTARTS: Final = 5
"""The maximum number of times that a server is launched again within `SERVER_WINDOW_S`."""
SERVER_WINDOW_S: Final = 600.0
NUM_KEPT_RESTARTS: Final = 20
"""The number of a server's last restarts that its status keeps. It may be launched again for months."""


@final
@dataclass(frozen=True, kw_only=True)
class Step:
    """What a gang supervisor does next.

    Attributes:
        phase: the phase of the gang.
        stop: the names of the replicas to stop.
        restarts: the replicas to launch again while the others continue, by name.
        displaced: the names of the replicas to launch again when they have another machine, while the others continue.
        end: how the gang ended; None while a replica lives.
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

    A replica that failed ends the gang, because the others would wait for it forever. With parameter servers they would
    not: a worker or an evaluator whose failure is worth a restart is launched again alone, and so is a parameter server
    if the job allows it. If the order sets `move_within_s`, a worker or an evaluator whose machine is gone may wait for
    another one; the limit only counts while no worker is left. The leader's success is the job's success: its parameter
    servers are then stopped at once, and its workers and evaluators after `LINGER_S`.

    A server that ends is launched again, whatever its exit code is, unless it was never ready because of its own fault,
    or has ended too often: see `MAX_SERVER_RESTARTS`.

    Args:
        order: the order of the gang; its first replica leads.
        statuses: the last known status of each replica by name; a replica without one is not placed yet.
        stop_requested: whether somebody requested the gang's end.
        now_s: the current time, in seconds since 1970 UTC.
        lost_nodes: the names of the replicas whose nodes are lost. They cannot be launched again there.
    """
    roles = {replica.name: replica.role for replica in order.replicas}
    known = [statuses[name] for name in roles if name in statuses]
    living = [status.name for status in known if status.phase is not ReplicaPhase.ENDED]
    leader = statuses.get(order.replicas[0].name)
    succeeded = leader is not None and leader.end is not None and leader.end.succeeded and not _is_server(order)
    restarts, displaced = _restarts(order, known, lost_nodes=() if succeeded else lost_nodes, now_s=now_s)
    failure = _first_failure([status for status in known if status.name not in {*restarts, *displaced}])
    is_over = leader is not None and leader.phase is ReplicaPhase.ENDED and leader.name not in restarts
    if stop_requested or failure is not None or is_over:
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
    """Returns the status of a replica after a report, which may be late.

    Args:
        known: the known status; None before the first report.
        report: the status that the replica's launcher reports.
    """
    if known is None or _last_number(report) > _last_number(known):
        return report
    # An end is final, and reports of an earlier launch no longer count.
    is_late = known.phase is ReplicaPhase.ENDED or _last_number(report) < _last_number(known)
    return known if is_late else report


def _last_number(status: ReplicaStatus) -> int:
    """Returns the number of a replica's last restart, which grows with each; 0 if there was none."""
    return status.restarts[-1].number if status.restarts else 0


def order_of_next_launch(order: ReplicaOrder, *, last: ReplicaStatus, restart: ReplicaRestart) -> ReplicaOrder:
    """Returns the order for a replica's next launch, which continues from its last status.

    Args:
        order: the order of the first launch.
        last: the last status.
        restart: the restart that `next_step` decided on.
    """
    restarts = (*last.restarts, restart)
    kept = restarts if order.server is None else restarts[-NUM_KEPT_RESTARTS:]
    return replace(order, earlier=replace(last, restarts=kept))


def restartable_alone(order: GangOrder) -> frozenset[str]:
    """Returns the names of the replicas that are launched again alone, while the others continue.

    Evaluators belong to them in every job, because nobody waits for them. In a job with parameter servers, its workers
    do too: each one works without the others, and its state is on the servers. The leader does not, because it
    distributes the work. Parameter servers do only if the job's policy says so: a new server has to be given the state
    that it lacks. A server does too.
    """
    if _is_server(order):
        return frozenset(replica.name for replica in order.replicas)
    policy = order.restart_policy
    if policy is None or policy.whole_job:
        return frozenset()
    if all(replica.role != "ps" for replica in order.replicas):
        return frozenset(replica.name for replica in order.replicas if replica.role == "evaluator")
    kept = () if policy.servers_alone else ("ps",)
    return frozenset(replica.name for replica in order.replicas[1:] if replica.role not in kept)


def movable_replicas(order: GangOrder) -> frozenset[str]:
    """Returns the names of the replicas that can continue alone at another address, or on another machine.

    Parameter servers cannot: their users know their addresses.
    """
    if order.move_within_s is None:
        return frozenset()
    alone = restartable_alone(order)
    return frozenset(replica.name for replica in order.replicas if replica.name in alone and replica.role != "ps")


def _restarts(
    order: GangOrder, known: Sequence[ReplicaStatus], *, lost_nodes: Collection[str], now_s: float
) -> tuple[dict[str, ReplicaRestart], tuple[str, ...]]:
    """Returns the failed replicas to launch again alone within the job's budget of restarts, ordered by their end.

    The second value has the names of those that can be launched again once they have another machine.
    """
    alone = restartable_alone(order).difference(lost_nodes)
    waiting = _may_wait(order, known, now_s=now_s).intersection(lost_nodes)
    if not (alone or waiting):
        return {}, ()
    listed = order.num_restarts + sum(len(status.restarts) for status in known)
    num_restarts = max(listed, *map(_last_number, known)) if known else listed  # a server does not list all
    found: dict[str, ReplicaRestart] = {}
    displaced: list[str] = []
    ended = _ends(known) if _is_server(order) else _failures(known)
    for status in sorted(ended, key=_end_time_s):
        assert status.end is not None
        reason = why_replica_ended(status, end=status.end)
        num_coming = num_restarts + len(found) + len(displaced)
        if not _should_restart(order, status, reason, num_restarts=num_coming, now_s=now_s):
            continue
        if status.name in alone:
            number = num_restarts + len(found) + 1
            found[status.name] = ReplicaRestart(number=number, time_s=now_s, reason=str(reason))
        elif status.name in waiting:
            displaced.append(status.name)
    return found, tuple(displaced)


def _should_restart(
    order: GangOrder, status: ReplicaStatus, reason: EndReason, *, num_restarts: int, now_s: float
) -> bool:
    if _is_server(order):
        was_ready = status.ready_time_s is not None or bool(status.restarts)
        num_recent = sum(now_s - restart.time_s < SERVER_WINDOW_S for restart in status.restarts)
        # One that is not ready in time would not be the next time either, after as long a wait.
        is_machines = reason.kind in MACHINE_KINDS and reason.kind is not EndKind.STUCK
        return (was_ready or is_machines) and num_recent < MAX_SERVER_RESTARTS
    policy = order.restart_policy
    return policy is not None and should_restart(reason, policy=policy, num_restarts=num_restarts)


def _is_server(order: GangOrder) -> bool:
    return order.replicas[0].server is not None


def _may_wait(order: GangOrder, known: Sequence[ReplicaStatus], *, now_s: float) -> frozenset[str]:
    """Returns the names of the replicas that may wait for another machine; workers only until the limit is reached."""
    within_s = order.move_within_s
    if within_s is None:
        return frozenset()
    workers = {replica.name for replica in order.replicas if replica.role == "worker"}
    is_overdue = all(
        status.phase is ReplicaPhase.ENDED and now_s - _end_time_s(status) > within_s
        for status in known
        if status.name in workers
    )
    return movable_replicas(order) - workers if is_overdue else movable_replicas(order)


def _phase(known: Sequence[ReplicaStatus], *, num_replicas: int, num_living: int) -> GangPhase:
    if len(known) < num_replicas:
        return GangPhase.PLACING
    if num_living == 0:
        return GangPhase.ENDED
    started = all(status.started_time_s is not None for status in known)
    return GangPhase.RUNNING if started else GangPhase.STARTING


def _ends(known: Sequence[ReplicaStatus]) -> list[ReplicaStatus]:
    return [s for s in known if s.end is not None and not s.end.stopped]


def _failures(known: Sequence[ReplicaStatus]) -> list[ReplicaStatus]:
    return [s for s in _ends(known) if s.end is not None and not s.end.succeeded]


def _first_failure(known: Sequence[ReplicaStatus]) -> ReplicaStatus | None:
    return min(_failures(known), key=_end_time_s, default=None)


def _end_time_s(status: ReplicaStatus) -> float:
    return status.ended_time_s or 0.0


def _end(leader: ReplicaStatus | None, failure: ReplicaStatus | None, *, stop_requested: bool) -> GangEnd:
    assert leader is not None
    assert leader.end is not None
    # What happened first counts: a worker that fails after the leader's success can no longer do harm.
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
