"""Jobs with many replicas, on both databases: what is measured, and which jobs are read again."""

from __future__ import annotations

from sqlalchemy import Engine

from lockstep.jobs.input.spec import AcceleratorConfig, AcceleratorType
from lockstep.jobs.running.orders import ProgramEnd, ProgramUsage, ReplicaPhase, ReplicaStatus
from lockstep.jobs.running.states import JobEvent
from lockstep.service.store import JobStore, ReplicaChange, ReplicaRecord


def _create(store: JobStore, job_id: str) -> str:
    return store.create(project="p", job_id=job_id, training_input={}, labels={}, simulated=False, outputs={}).uid


def _replica(number: int, *, time_s: float) -> ReplicaRecord:
    usage = ProgramUsage(cpu_s=time_s / 3, wall_s=time_s / 7, peak_memory_bytes=2**40 + number)
    status = ReplicaStatus(
        name=f"worker-replica-{number}",
        phase=ReplicaPhase.RUNNING,
        seen_time_s=time_s,
        usage=usage,
        metrics={"loss": time_s / 11, "ü'\"": 1e-300},
        end=ProgramEnd(exit_code=0, tail=("it's \u20ac",)) if number % 2 else None,
    )
    accelerator = AcceleratorConfig(type=AcceleratorType.NVIDIA_TESLA_T4, count=2) if number % 3 else None
    return ReplicaRecord(status=status, machine_type="n1-standard-4", accelerator=accelerator)


def test_measured_values_of_many_replicas_are_recorded_as_they_are(database: Engine) -> None:
    store, number = JobStore(database), 250  # more than one statement changes
    uids = [_create(store, f"j{index}") for index in range(2)]
    for uid in uids:
        store.update(uid, replicas=[_replica(index, time_s=1.0) for index in range(number)])
    changed = [
        ReplicaChange(uid, index, _replica(index, time_s=1764338712.123456 + index * 0.1))
        for uid in uids
        for index in range(0, number, 2)
    ]
    store.update_replicas(changed)
    for uid in uids:
        recorded = store.get_by_uid(uid).replicas
        expected = {change.number: change.replica for change in changed if change.uid == uid}
        assert recorded == tuple(expected.get(index, _replica(index, time_s=1.0)) for index in range(number))


def test_jobs_that_are_known_are_read_again_once_they_change(database: Engine) -> None:
    store = JobStore(database)
    uids = [_create(store, f"j{index}") for index in range(3)]
    assert store.placed_jobs(known={}) == []
    for uid in uids[:2]:
        store.advance(uid, JobEvent.PREPARING, detail="", gang_released=False)
    known = {job.uid: job for job in store.placed_jobs(known={})}
    assert list(known) == uids[:2]
    store.update(uids[0], drain_time_s=1.0)
    first, second = store.placed_jobs(known=known)
    assert (first.drain_time_s, first.revision) == (1.0, known[uids[0]].revision + 1)
    assert second is known[uids[1]]
