"""When a server that gets no further requests can be ended."""

from __future__ import annotations

from collections.abc import Mapping

from lockstep.jobs.running.orders import ReplicaPhase, ReplicaStatus
from lockstep.jobs.running.progress import Progress
from lockstep.jobs.running.states import JobState
from lockstep.service.prediction.draining import MAX_DRAIN_S, SETTLE_S, Drains
from lockstep.service.prediction.routing import MAX_AGE_S
from lockstep.service.store import JobKind, JobRecord, ReplicaRecord


def server(beat_s: float, metrics: Mapping[str, float]) -> JobRecord:
    status = ReplicaStatus(
        name="master-replica-0",
        phase=ReplicaPhase.RUNNING,
        host="node",
        ready_time_s=1.0,
        progress=Progress(time_s=beat_s, metrics=metrics),
    )
    return JobRecord(
        uid="u",
        project="p",
        job_id="m/v1/1",
        kind=JobKind.SERVER,
        training_input={},
        labels={},
        state=JobState.RUNNING,
        version=1,
        create_time_s=0.0,
        replicas=(ReplicaRecord(status=status, machine_type="n1-standard-4"),),
        drain_time_s=0.0,
    )


def test_it_is_ended_once_a_later_heartbeat_says_that_nothing_is_open() -> None:
    now_s = 100.0
    drains = Drains(clock=lambda: now_s)
    assert SETTLE_S > MAX_AGE_S + 2.0, "longer than services choose it, and than a report takes"
    assert not drains.is_drained(server(1.0, {"open": 0}))
    now_s += SETTLE_S
    assert not drains.is_drained(server(2.0, {"open": 0})), "this may be from before the last request"
    assert not drains.is_drained(server(2.0, {"open": 0}))
    assert not drains.is_drained(server(4.0, {"open": 1}))
    assert not drains.is_drained(server(6.0, {"open": 0, "waiting": 1}))
    assert drains.is_drained(server(8.0, {"open": 0, "waiting": 0}))


def test_it_is_ended_in_any_case_after_its_time() -> None:
    now_s = 100.0
    drains = Drains(clock=lambda: now_s)
    assert not drains.is_drained(server(1.0, {"open": 1}))
    now_s -= 50.0
    assert not drains.is_drained(server(2.0, {"open": 1}))
    now_s += MAX_DRAIN_S
    assert drains.is_drained(server(3.0, {"open": 1}))


def test_one_that_was_taken_back_drains_from_the_beginning() -> None:
    now_s = 100.0
    drains = Drains(clock=lambda: now_s)
    drains.is_drained(server(1.0, {"open": 0}))
    now_s += MAX_DRAIN_S
    drains.keep_only([])
    assert not drains.is_drained(server(2.0, {"open": 0}))
