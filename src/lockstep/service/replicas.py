"""What the database keeps of a job's replicas: how each is, and that one was launched again while the others ran on."""

from __future__ import annotations

from typing import Final

from lockstep.jobs import Catalogue
from lockstep.jobs.orders import GangStatus
from lockstep.service.planning import gang_of, replica_document, training_input_of
from lockstep.service.store import JobRecord, JobStore, Note

REPLICA_RESTARTED: Final = "replica_restarted"
"""What is recorded of a job of which a replica was launched again alone."""


def record_replicas(job: JobRecord, *, status: GangStatus, store: JobStore, catalogue: Catalogue) -> JobRecord:
    """Records how a job's replicas are; of those that were launched again, an event and a restart of the job for each.

    All of it is one transaction, so that none is recorded twice or counted without being told.

    Args:
        job: the job, as it was recorded last.
        status: how its gang is.
        store: the jobs.
        catalogue: machines.

    Returns:
        The job, with its restarts.

    Raises:
        ConfigError: this version cannot read it.
    """
    gang = gang_of(job, catalogue=catalogue)
    replicas = [replica_document(replica, gang=gang, simulated=job.simulated) for replica in status.replicas]
    if replicas == list(job.replicas):
        return job
    notes = _new_restarts(job, status)
    if not notes:
        store.update(job.uid, replicas=replicas)
        return job
    store.update(job.uid, notes=notes, replicas=replicas, num_restarts=job.num_restarts + len(notes))
    return store.get_by_uid(job.uid)


def _new_restarts(job: JobRecord, status: GangStatus) -> list[Note]:
    """Returns what is to be told of replicas that were launched again since they were recorded last."""
    recorded = {replica["name"]: len(replica.get("restarts", ())) for replica in job.replicas}
    found = [
        (restart, replica.name)
        for replica in status.replicas
        for restart in replica.restarts[recorded.get(replica.name, 0) :]
    ]
    at_most = training_input_of(job).lockstep.restart_policy.max_restarts
    return [
        Note(
            kind=REPLICA_RESTARTED,
            detail=f"{restart.reason}: {name} alone is launched again, restart {restart.number} of at most {at_most}",
            time_s=restart.time_s,
        )
        for restart, name in sorted(found, key=lambda each: each[0].number)
    ]
