"""What a job's replicas used, from its record: the machines, and for how long."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.jobs.billing.bills import Bill, ReplicaUsage, bill
from lockstep.jobs.billing.costs import Run
from lockstep.jobs.input.gangs import resolve
from lockstep.jobs.machines.catalogue import Catalogue
from lockstep.jobs.running.evidence import present_end_s
from lockstep.service.control.job_inputs import order_of, training_input_of
from lockstep.service.store import AttemptRecord, JobRecord, stays


def job_bill(job: JobRecord, *, attempts: Sequence[AttemptRecord], catalogue: Catalogue) -> Bill:
    """Returns what a job cost: every replica's machine from the start (RUNNING) of each of its attempts to its end.

    A replica that waits for another machine while the others run on costs nothing as long as it does. A job that never
    ran consumed nothing.

    Raises:
        ConfigError: this version cannot read it.
    """
    return bill(usages_of(job, attempts=attempts, catalogue=catalogue), catalogue=catalogue)


def run_of(job: JobRecord, *, attempts: Sequence[AttemptRecord], catalogue: Catalogue, now_s: float) -> Run:
    """Returns what a job ran; one that runs, up to now, or to the last sign of it where that is long ago.

    Args:
        job: the job.
        attempts: its starts that are over.
        catalogue: machines.
        now_s: seconds since 1970 UTC.
    """
    present = present_attempt(job, now_s=now_s)
    running = [] if present is None else [present]
    return Run(
        uid=job.uid,
        project=job.project,
        job=job.job_id,
        labels=dict(job.labels),
        simulated=job.simulated,
        usages=tuple(usages_of(job, attempts=[*attempts, *running], catalogue=catalogue)),
    )


def present_attempt(job: JobRecord, *, now_s: float) -> AttemptRecord | None:
    """Returns the start of a gang that runs as if it ended now, or with its last sign, where that is long ago.

    Args:
        job: the job.
        now_s: seconds since 1970 UTC.

    Returns:
        The start; None where none runs.
    """
    if job.run_start_time_s is None or job.end_time_s is not None:
        return None
    return AttemptRecord(
        attempt=job.attempt,
        candidate=job.candidate,
        start_time_s=job.run_start_time_s,
        end_time_s=present_end_s(_seen_times_s(job), now_s=now_s),
        end_reason=None,
        machines=machines_of(job),
        moves=job.moves,
    )


def _seen_times_s(job: JobRecord) -> list[float]:
    """Returns when a job's replicas were heard of last."""
    return [replica.status.seen_time_s for replica in job.replicas if replica.status.seen_time_s is not None]


def machines_of(job: JobRecord) -> tuple[str, ...]:
    """Returns the nodes that the replicas of a job have, by their names in the ledger; none where it has none of it.

    Of a replica that waits for another one, it is the one that it lost.
    """
    order = order_of(job)
    machines = () if order is None else tuple(replica.machine for replica in order.replicas)
    return machines if all(machines) else ()


def usages_of(job: JobRecord, *, attempts: Sequence[AttemptRecord], catalogue: Catalogue) -> list[ReplicaUsage]:
    """Returns what the replicas of a job ran in some of its starts.

    Raises:
        ConfigError: this version cannot read it.
    """
    usages: list[ReplicaUsage] = []
    for attempt in attempts:
        if attempt.start_time_s is None:
            continue
        asked = training_input_of(job, candidate=attempt.candidate)
        gang = resolve(asked, catalogue=catalogue)
        usages.extend(
            ReplicaUsage(
                replica=replica.name,
                machine_type=replica.machine_type,
                accelerator=replica.accelerator,
                region=asked.region,
                start_time_s=stay.start_time_s,
                end_time_s=stay.end_time_s,
                machine=stay.machine,
            )
            for replica, machine in zip(gang, attempt.machines or ("",) * len(gang), strict=True)
            for stay in stays(
                replica.name,
                machine=machine,
                moves=attempt.moves,
                start_time_s=attempt.start_time_s,
                end_time_s=attempt.end_time_s,
            )
        )
    return usages
