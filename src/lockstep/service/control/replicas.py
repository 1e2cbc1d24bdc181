"""Records the replicas of jobs: their status, their launches, and their moves to other machines."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from lockstep.jobs.machines.catalogue import Catalogue
from lockstep.jobs.running.ends import EndKind, why_replica_ended
from lockstep.jobs.running.orders import GANG_ORDER, Fault, GangOrder, GangStatus
from lockstep.jobs.running.states import JobState
from lockstep.service.control.job_inputs import gang_of, training_input_of
from lockstep.service.control.provisioner import Provisioner
from lockstep.service.store import (
    EventNote,
    JobKind,
    JobRecord,
    JobStore,
    Move,
    ReplicaChange,
    ReplicaRecord,
    changes_of,
)

REPLICA_DISPLACED: Final = "replica_displaced"
"""The kind of the event that a replica lost its machine, and waits for another one."""
REPLICA_RESTARTED: Final = "replica_restarted"
"""The kind of the event that one replica was launched again, while the others continued."""


def record_replicas(
    job: JobRecord,
    *,
    status: GangStatus,
    store: JobStore,
    catalogue: Catalogue,
    measured: list[ReplicaChange] | None,
    begins: bool = False,
) -> JobRecord:
    """Records the status of a job's replicas. Each new launch of a replica adds an event, and a restart of the job.

    All changes are one transaction, so no launch is recorded twice or counted without an event. What running programs
    use changes every two seconds: the caller records that of all jobs in one transaction.

    Args:
        job: the job, as it was recorded last.
        status: the status of its gang.
        store: the store of jobs.
        catalogue: the catalogue of machines.
        measured: receives the changed replicas of a job that goes on running; None to record these, too.
        begins: whether the caller records the replicas together with the job's start, unless one was launched again.

    Returns:
        The job, with the new number of restarts, and with the replicas that the caller records.

    Raises:
        ConfigError: If this version cannot read the job.
    """
    if status.replicas == tuple(replica.status for replica in job.replicas):
        return job
    members = {member.name: member for member in gang_of(job, catalogue=catalogue)}
    replicas = [
        ReplicaRecord(
            status=replica,
            machine_type=members[replica.name].machine_type,
            accelerator=members[replica.name].accelerator,
        )
        for replica in status.replicas
    ]
    notes = _new_restarts(job, status)
    if begins and not notes:
        return replace(job, replicas=tuple(replicas))
    if not notes:
        is_running = job.state is JobState.RUNNING and len(job.replicas) == len(replicas)
        if measured is not None and is_running and status.end is None:
            measured += changes_of(job.uid, replicas, recorded=job.replicas)
        else:
            store.update(job.uid, replicas=replicas)
        return job
    store.update(job.uid, notes=notes, replicas=replicas, num_restarts=job.num_restarts + len(notes))
    return store.get_by_uid(job.uid)


def _new_restarts(job: JobRecord, status: GangStatus) -> list[EventNote]:
    """Returns the events of replicas that have been launched again since they were last recorded."""
    recorded = {
        replica.status.name: replica.status.restarts[-1].number for replica in job.replicas if replica.status.restarts
    }
    found = [
        (restart, replica.name)
        for replica in status.replicas
        for restart in replica.restarts
        if restart.number > recorded.get(replica.name, 0)
    ]
    at_most = f" of at most {training_input_of(job).lockstep.restart_policy.max_restarts}"
    if job.kind is JobKind.SERVER:
        at_most = ""
    return [
        EventNote(
            kind=REPLICA_RESTARTED,
            detail=f"{restart.reason}: only {name} is launched again, restart {restart.number}{at_most}",
            time_s=restart.time_s,
        )
        for restart, name in sorted(found, key=lambda each: each[0].number)
    ]


def record_displaced(
    job: JobRecord, *, status: GangStatus, order: GangOrder, store: JobStore, provisioner: Provisioner, now_s: float
) -> dict[str, str]:
    """Records which of a job's replicas wait for another machine, with an event for each, and which have a new one.

    The record is written before the engine is called, so a service that takes over calls the engine with the same
    machines.

    Args:
        job: the job, as it was recorded last.
        status: the status of its gang.
        order: the order of the gang, as it was recorded last.
        store: the store of jobs.
        provisioner: the provisioner, which knows the machines that are ready.
        now_s: the current time, in seconds since 1970 UTC.

    Returns:
        The new machines by replica name, for the engine, which may have received them before.
    """
    replicas = {replica.name: replica for replica in order.replicas}
    ready = provisioner.ready()
    moves, notes = list(job.moves), list[EventNote]()
    for name, lost in status.displaced.items():
        if replicas[name].machine != lost:
            continue  # it already has a new machine
        waiting = next((number for number, move in enumerate(moves) if move.replica == name and not move.time_s), None)
        if waiting is None:
            waiting = len(moves)
            moves.append(Move(replica=name, machine=lost, lost_time_s=_lost_time_s(name, status, moves=moves)))
            detail = f"{_why_displaced(name, status, lost, provisioner)}: only {name} waits for another machine"
            notes.append(EventNote(kind=REPLICA_DISPLACED, detail=detail, time_s=now_s))
        machine = ready.get(replicas[name].node, lost)
        if machine != lost:
            moves[waiting] = replace(moves[waiting], time_s=now_s)
            replicas[name] = replace(replicas[name], machine=machine)
    if tuple(moves) != job.moves:
        moved = replace(order, replicas=tuple(replicas.values()))
        recorded = GANG_ORDER.dump_python(moved, mode="json")
        store.update(job.uid, notes=notes, moves=tuple(moves), gang_order=recorded)
    return {name: replicas[name].machine for name, lost in status.displaced.items() if replicas[name].machine != lost}


def _lost_time_s(name: str, status: GangStatus, *, moves: list[Move]) -> float:
    """Returns when a replica lost its machine: the end of its program, or its last report if the node was lost."""
    replica = next(replica for replica in status.replicas if replica.name == name)
    ended_s = replica.ended_time_s or 0.0
    if replica.end is not None and replica.end.fault is Fault.NODE and replica.seen_time_s is not None:
        ended_s = min(ended_s, replica.seen_time_s)  # otherwise it would be the time when the loss was noticed
    return max([ended_s, *(move.time_s for move in moves if move.replica == name and move.time_s)])


def _why_displaced(name: str, status: GangStatus, machine: str, provisioner: Provisioner) -> str:
    replica = next(replica for replica in status.replicas if replica.name == name)
    assert replica.end is not None, "who waits for another machine has ended on the one before"
    reason = why_replica_ended(replica, end=replica.end)
    is_preempted = reason.kind is EndKind.NODE_LOST and provisioner.was_preempted(machine)
    return str(replace(reason, kind=EndKind.PREEMPTED) if is_preempted else reason)
