"""The jobs past the queue that are kept from pass to pass: whatever changes them, they are never stale."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from lockstep.jobs.running.orders import ReplicaPhase, ReplicaStatus
from lockstep.jobs.running.states import JobEvent
from lockstep.service.control.placed_jobs import PlacedJobs
from lockstep.service.store import EventNote, JobRecord, JobStore, ReplicaChange, ReplicaRecord, open_database

MACHINE = "n1-standard-4"


def measured(seconds: float, *, name: str = "master-replica-0") -> ReplicaRecord:
    status = ReplicaStatus(name=name, phase=ReplicaPhase.RUNNING, seen_time_s=seconds)
    return ReplicaRecord(status=status, machine_type=MACHINE)


@pytest.fixture
def database(tmp_path: Path) -> Engine:
    return open_database(f"sqlite:///{tmp_path / 'jobs.db'}")


@pytest.fixture
def store(database: Engine) -> JobStore:
    return JobStore(database)


def start(store: JobStore, job_id: str, *, num_replicas: int = 2) -> JobRecord:
    job = store.create(project="p", job_id=job_id, training_input={}, labels={}, simulated=False, outputs={})
    store.advance(job.uid, JobEvent.PREPARING, detail="", gang_released=False)
    return store.advance(
        job.uid, JobEvent.STARTED, detail="", replicas=[measured(0.0, name=f"r{n}") for n in range(num_replicas)]
    )


CHANGES: dict[str, Callable[[JobStore, str], Any]] = {
    "a state": lambda store, uid: store.advance(uid, JobEvent.CANCEL_REQUESTED, detail=""),
    "a column": lambda store, uid: store.update(uid, drain_time_s=3.0),
    "replicas": lambda store, uid: store.update(uid, replicas=[measured(5.0)]),
    "a restart": lambda store, uid: store.update(
        uid, notes=[EventNote(kind="replica_restarted", detail="", time_s=1.0)], num_restarts=1
    ),
    "labels": lambda store, uid: store.set_labels(uid, labels={"a": "b"}, version=None),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen_in_the_next_pass(database: Engine, store: JobStore, change: str) -> None:
    uids = [start(store, job_id).uid for job_id in ("changes", "stays")]
    placed = PlacedJobs(store)
    changes, stays = placed.read()
    CHANGES[change](JobStore(database), uids[0])
    again, same = placed.read()
    assert again == store.get_by_uid(uids[0]) != changes
    assert same is stays


def test_jobs_begin_and_end(store: JobStore) -> None:
    placed = PlacedJobs(store)
    assert placed.read() == []
    first, second = start(store, "first"), start(store, "second")
    assert placed.read() == [first, second]
    store.advance(first.uid, JobEvent.SUCCEEDED, detail="")
    assert [job.uid for job in placed.read()] == [first.uid, second.uid]
    store.update(first.uid, gang_released=True)
    assert placed.read() == [second]


def test_what_replicas_report_is_noted_and_not_read_again(store: JobStore) -> None:
    jobs = [start(store, job_id) for job_id in ("one", "two")]
    placed = PlacedJobs(store)
    placed.read()
    changes = [
        ReplicaChange(job.uid, number, measured(2.0 + number, name=f"r{number}"))
        for job, numbers in zip(jobs, ((0, 1), (1,)), strict=True)
        for number in numbers
    ]
    store.update_replicas(changes)
    placed.note_measured(changes)
    found = placed.read()
    assert found == [store.get_by_uid(job.uid) for job in jobs]
    assert [[replica.status.seen_time_s for replica in job.replicas] for job in found] == [[2.0, 3.0], [0.0, 3.0]]


def test_what_another_service_recorded_is_read_after_forgetting(database: Engine, store: JobStore) -> None:
    job = start(store, "moves")
    placed = PlacedJobs(store)
    placed.read()
    JobStore(database).update_replicas([ReplicaChange(job.uid, 0, measured(9.0, name="r0"))])
    placed.forget()
    assert placed.read() == [store.get_by_uid(job.uid)]
    assert placed.read()[0].replicas[0] == measured(9.0, name="r0")
