"""The usages of a job's replicas, computed from its record: which machines, and for how long."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.jobs.billing.bills import Bill, ReplicaUsage, bill
from lockstep.jobs.billing.costs import JobUsage
from lockstep.jobs.billing.served_models import served_model
from lockstep.jobs.machines.catalogue import Catalogue
from lockstep.jobs.running.evidence import billable_until_s
from lockstep.service.control.job_inputs import gang_of, order_of, training_input_of
from lockstep.service.store import AttemptRecord, JobKind, JobRecord, machine_stays


def job_bill(job: JobRecord, *, attempts: Sequence[AttemptRecord], catalogue: Catalogue) -> Bill:
    """Returns the bill of a job: the machines of all replicas from the start (RUNNING) of each attempt to its end.

    A replica costs nothing while it waits for another machine. A job that never ran consumed nothing.

    Raises:
        ConfigError: If this version cannot read the job.
    """
    return bill(replica_usages(job, attempts=attempts, catalogue=catalogue), catalogue=catalogue)


def job_usage(job: JobRecord, *, attempts: Sequence[AttemptRecord], catalogue: Catalogue, now_s: float) -> JobUsage:
    """Returns the usage of a job. A running attempt counts up to now, or up to its last evidence if that is old.

    Args:
        job: the job.
        attempts: its ended attempts.
        catalogue: machines.
        now_s: the present time, in seconds since 1970 UTC.

    Raises:
        ConfigError: If this version cannot read the job.
    """
    present = present_attempt(job, now_s=now_s)
    running = [] if present is None else [present]
    is_server = job.kind is JobKind.SERVER
    return JobUsage(
        uid=job.uid,
        project=job.project,
        job=job.job_id,
        labels=dict(job.labels),
        simulated=job.simulated,
        usages=tuple(replica_usages(job, attempts=[*attempts, *running], catalogue=catalogue)),
        busy_s=sum(replica.status.busy_s for replica in job.replicas) if is_server else None,
        served=served_model(job.job_id, is_server=is_server, prediction_input=job.prediction_input),
    )


def present_attempt(job: JobRecord, *, now_s: float) -> AttemptRecord | None:
    """Returns the running attempt as if it ended now, or at its last evidence if that is old.

    Args:
        job: the job.
        now_s: the present time, in seconds since 1970 UTC.

    Returns:
        The attempt; None if none is running.
    """
    if job.run_start_time_s is None or job.end_time_s is not None:
        return None
    return AttemptRecord(
        attempt=job.attempt,
        candidate=job.candidate,
        start_time_s=job.run_start_time_s,
        end_time_s=billable_until_s(_seen_times_s(job), now_s=now_s),
        end_reason=None,
        machines=machines_of(job),
        moves=job.moves,
    )


def _seen_times_s(job: JobRecord) -> list[float]:
    """Returns the times of the last reports of a job's replicas."""
    return [replica.status.seen_time_s for replica in job.replicas if replica.status.seen_time_s is not None]


def machines_of(job: JobRecord) -> tuple[str, ...]:
    """Returns the names of the nodes that a job's replicas have; none if they are not in the ledger.

    For a replica that waits for another node, it is the node that the replica lost.
    """
    order = order_of(job)
    machines = () if order is None else tuple(replica.machine for replica in order.replicas)
    return machines if all(machines) else ()


def replica_usages(job: JobRecord, *, attempts: Sequence[AttemptRecord], catalogue: Catalogue) -> list[ReplicaUsage]:
    """Returns the usages of a job's replicas in some of its attempts.

    Raises:
        ConfigError: If this version cannot read the job.
    """
    usages: list[ReplicaUsage] = []
    for attempt in attempts:
        if attempt.start_time_s is None:
            continue
        region = training_input_of(job, candidate=attempt.candidate).region
        gang = gang_of(job, candidate=attempt.candidate, catalogue=catalogue)
        usages.extend(
            ReplicaUsage(
                replica=replica.name,
                machine_type=replica.machine_type,
                accelerator=replica.accelerator,
                region=region,
                start_time_s=stay.start_time_s,
                end_time_s=stay.end_time_s,
                machine=stay.machine,
            )
            for replica, machine in zip(gang, attempt.machines or ("",) * len(gang), strict=True)
            for stay in machine_stays(
                replica.name,
                machine=machine,
                moves=attempt.moves,
                start_time_s=attempt.start_time_s,
                end_time_s=attempt.end_time_s,
            )
        )
    return usages
