"""Prediction servers that only the database knows: a test records them, and what the engine would report of them."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from lockstep.jobs.running.order_parts import ServerOrder
from lockstep.jobs.running.orders import GANG_ORDER, GangOrder, ReplicaOrder, ReplicaPhase, ReplicaStatus
from lockstep.jobs.running.states import JobEvent, JobState
from lockstep.service.prediction.servers import start_server
from lockstep.service.store import JobRecord, JobStore, ReplicaRecord, VersionRecord

READY_WITHIN_S = 600.0


def record_server(jobs: JobStore, version: VersionRecord, *, bucket: str = "/bucket") -> JobRecord:
    """Queues another server of a version; returns it."""
    known = {server.uid for server in jobs.servers(version_uid=version.uid)}
    start_server(version, jobs=jobs, bucket=bucket, simulated=False)
    (made,) = [server for server in jobs.servers(version_uid=version.uid) if server.uid not in known]
    return made


def report(jobs: JobStore, server: JobRecord, *, phase: ReplicaPhase, **status: Any) -> JobRecord:
    """Records what the engine reports of a server, and the states of its job that follow; returns the job."""
    found = jobs.get_by_uid(server.uid)
    if found.state is JobState.QUEUED:
        replica = ReplicaOrder(
            name="master-0",
            role="master",
            index=0,
            job=found.job_id,
            command=(),
            spool="",
            log_url=f"{found.outputs['logs']}/{found.uid}/master-0/attempt-000",
            server=ServerOrder(ready_within_s=READY_WITHIN_S, silent_within_s=3.0),
        )
        order = GANG_ORDER.dump_python(GangOrder(gang_id=f"{found.uid}-0", replicas=(replica,)), mode="json")
        jobs.advance(found.uid, JobEvent.PREPARING, detail="", gang_order=order, gang_released=False)
    before = found.replicas[0].status if found.replicas else ReplicaStatus(name="master-0", phase=phase)
    after = replace(before, phase=phase, **status)
    if phase is ReplicaPhase.RUNNING and after.started_time_s is None:
        after = replace(after, started_time_s=time.time())
    jobs.update(found.uid, replicas=[ReplicaRecord(status=after, machine_type="n1-standard-4")])
    if phase is ReplicaPhase.RUNNING and found.state in (JobState.QUEUED, JobState.PREPARING):
        started_s = after.started_time_s
        jobs.advance(found.uid, JobEvent.STARTED, detail="", start_time_s=started_s, run_start_time_s=started_s)
    return jobs.get_by_uid(found.uid)


def make_ready(jobs: JobStore, server: JobRecord) -> JobRecord:
    """Records that a server is ready; returns it."""
    return report(jobs, server, phase=ReplicaPhase.RUNNING, ready_time_s=time.time())


def release(jobs: JobStore, server: JobRecord, event: JobEvent, **changes: Any) -> None:
    """Records the end of a server, and that the engine holds nothing of it."""
    jobs.advance(server.uid, event, detail="", end_time_s=time.time(), gang_released=True, **changes)
