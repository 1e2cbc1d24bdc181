"""A job whose gang failed is started again: whole, from its checkpoint, within its budget, at its old place."""

from __future__ import annotations

import os
import signal
from decimal import Decimal
from pathlib import Path

import pytest

from lockstep.jobs.running.states import JobEvent, JobState
from lockstep.service.store import JobRecord
from lockstep.service.telemetry.logs import Cursor, read_log
from lockstep.testing.bench import Bench

# The first start writes a checkpoint and waits to be killed; the next one goes on from it.
GO_ON = """
import json, os, pathlib, time
role = json.loads(os.environ.get("TF_CONFIG", '{"task": {"type": "master"}}'))["task"]["type"]
place = pathlib.Path(os.environ["AIP_CHECKPOINT_DIR"]); place.mkdir(parents=True, exist_ok=True)
if (place / role).exists():
    print("goes on from", (place / role).read_text())
else:
    (place / role).write_text("7")
    time.sleep(600)
"""
WAIT = "import time; time.sleep(600)"
PAIR = {"scaleTier": "CUSTOM", "masterType": "n1-standard-4", "workerType": "n1-standard-4", "workerCount": "1"}


def states(bench: Bench, job_id: str) -> list[str]:
    return [event.state for event in bench.store.events(bench.job(job_id).uid)]


def kill_program(job: JobRecord, *, replica: int = 0) -> None:
    os.kill(job.replicas[replica].status.pid, signal.SIGKILL)


def running(bench: Bench, job_id: str, *, attempt: int = 0) -> JobRecord:
    return bench.step_until(job_id, lambda job: job.state is JobState.RUNNING and job.attempt == attempt)


def has_saved(bench: Bench, job_id: str) -> JobRecord:
    def saved(job: JobRecord) -> bool:
        steps = list(Path(job.outputs["checkpoints"]).glob("*"))
        return job.state is JobState.RUNNING and len(steps) == len(job.replicas)

    return bench.step_until(job_id, saved)


def test_a_killed_program_goes_on_from_its_checkpoint(bench: Bench) -> None:
    bench.create("job", GO_ON)
    kill_program(has_saved(bench, "job"))
    job = bench.step_until_over("job")
    assert job.state is JobState.SUCCEEDED
    assert states(bench, "job") == ["QUEUED", "PREPARING", "RUNNING", "QUEUED", "PREPARING", "RUNNING", "SUCCEEDED"]
    assert (job.num_restarts, job.attempt, job.end_reason) == (1, 1, None)
    restarted = next(event for event in bench.store.events(job.uid) if event.kind == "restarted")
    assert restarted.detail == "MACHINE_ERROR(SIGKILL, master-0): restart 1 of at most 3"
    first, second = bench.store.attempts(job.uid)
    assert (first.attempt, first.end_reason) == (0, "MACHINE_ERROR(SIGKILL, master-0)")
    assert (second.attempt, second.end_reason) == (1, None)
    assert job.start_time_s == first.start_time_s
    assert job.end_time_s == second.end_time_s
    assert job.bill is not None
    ran_s = sum(a.end_time_s - a.start_time_s for a in (first, second) if a.start_time_s is not None)
    expected = Decimal("0.3878") * Decimal(ran_s) / 3600  # BASIC, and not the time in between
    assert abs(job.bill.ml_units - expected) <= Decimal("0.006")


def test_a_lost_replica_takes_the_whole_gang_down_and_up_again(bench: Bench) -> None:
    bench.create("pair", GO_ON, **PAIR)
    before = has_saved(bench, "pair")
    kill_program(before, replica=1)
    job = bench.step_until_over("pair")
    assert job.state is JobState.SUCCEEDED
    assert {replica.status.name for replica in job.replicas} == {"master-replica-0", "worker-replica-0"}
    assert {r.status.pid for r in job.replicas}.isdisjoint({r.status.pid for r in before.replicas})


def test_an_error_of_the_users_is_not_tried_again_unless_asked(bench: Bench) -> None:
    bench.create("bad", "raise SystemExit(3)")
    job = bench.step_until_over("bad")
    assert (job.state, job.num_restarts, job.end_reason) == (JobState.FAILED, 0, "USER_ERROR(exit 3, master-0)")
    policy = {"restartPolicy": {"condition": "ON_FAILURE", "maxRestarts": 2}}
    bench.create("stubborn", "raise SystemExit(3)", lockstep=policy)
    job = bench.step_until_over("stubborn")
    assert (job.state, job.num_restarts, job.end_reason) == (JobState.FAILED, 2, "USER_ERROR(exit 3, master-0)")
    assert len(bench.store.attempts(job.uid)) == 3


def test_a_lost_engine_starts_its_jobs_again(bench: Bench) -> None:
    bench.create("job", GO_ON)
    has_saved(bench, "job")
    bench.cluster.kill()
    job = bench.step_until_over("job")
    assert job.state is JobState.SUCCEEDED
    assert [attempt.end_reason for attempt in bench.store.attempts(job.uid)] == ["NODE_LOST", None]


def test_it_has_its_old_place_in_the_queue(bench: Bench) -> None:
    for name in ("first", "second", "third"):
        bench.create(name, WAIT)
    bench.step_until_state("second", JobState.RUNNING)
    kill_program(running(bench, "first"))
    bench.step_until("first", lambda job: job.attempt == 1)
    running(bench, "first", attempt=1)
    assert bench.job("third").state is JobState.QUEUED


def test_one_that_waits_for_its_restart_can_be_cancelled(bench: Bench) -> None:
    bench.create("job", f"print('up', flush=True); {WAIT}")
    killed = running(bench, "job")
    bench.step_until("job", lambda job: bool(read_log(job, cursor=Cursor.decode(""), size=1, now_s=0.0).entries))
    bench.create("other", WAIT)
    bench.step_until_state("other", JobState.RUNNING)
    bench.create("urgent", WAIT, scheduling={"priority": 9})
    kill_program(killed)
    bench.step_until_state("urgent", JobState.RUNNING)
    job = bench.job("job")
    assert (job.state, job.attempt) == (JobState.QUEUED, 1)
    bench.store.advance(job.uid, JobEvent.CANCEL_REQUESTED, detail="test", end_reason="CANCELLED(on request)")
    job = bench.step_until_over("job")
    assert (job.state, job.end_reason) == (JobState.CANCELLED, "CANCELLED(on request)")
    assert bench.store.attempts(job.uid)[0].end_reason == "MACHINE_ERROR(SIGKILL, master-0)"
    page = read_log(job, cursor=Cursor.decode(""), size=10, now_s=0.0)
    assert [entry.stored.text for entry in page.entries] == ["up"], "the log of the start before stays"


def test_a_service_that_died_before_it_gave_the_old_gang_back_does_it_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.create("pair", GO_ON, **PAIR)
    before = has_saved(bench, "pair")
    kill_program(before)
    forget = bench.cluster.forget

    def die(_gang_id: str) -> None:
        raise SystemExit("killed here")

    monkeypatch.setattr(bench.cluster, "forget", die)
    with pytest.raises(SystemExit, match="killed here"):
        bench.step_until("pair", lambda job: job.attempt == 1)
    assert bench.job("pair").state is JobState.QUEUED
    monkeypatch.setattr(bench.cluster, "forget", forget)
    bench.restart()
    assert bench.step_until_over("pair").state is JobState.SUCCEEDED
    assert bench.cluster.observe(f"{before.uid}-0") is None


def test_restarts_are_not_counted_as_starts_that_the_engine_lost(bench: Bench) -> None:
    bench.create("job", WAIT)
    kill_program(running(bench, "job", attempt=0))
    second = running(bench, "job", attempt=1)
    bench.cluster.hold_placement(held=True)
    kill_program(second)
    bench.step_until("job", lambda job: job.attempt == 2 and job.state is JobState.PREPARING)
    bench.cluster.kill()  # once, before its third start ran
    bench.cluster.hold_placement(held=False)
    job = running(bench, "job", attempt=3)
    assert job.num_restarts == 2


def test_a_new_service_counts_the_time_of_this_start_alone_towards_its_promises(bench: Bench) -> None:
    limits = {"maxRunningTime": "1000s"}
    for name in ("job", "other"):
        bench.create(name, WAIT, scheduling=limits)
    bench.step_until_state("other", JobState.RUNNING)
    job = running(bench, "job")
    bench.store.update(job.uid, start_time_s=(job.start_time_s or 0.0) - 5000)  # it ran before, and was started again
    bench.create("waits", WAIT)
    bench.restart()
    bench.controller.step()
    promised = bench.controller.schedule.explain(bench.job("waits")).start_by_s
    assert promised is not None
    assert job.run_start_time_s is not None
    assert promised > job.run_start_time_s + 1000


def test_the_time_of_all_starts_counts(bench: Bench) -> None:
    bench.create("job", WAIT, scheduling={"maxRunningTime": "3s"})
    job = running(bench, "job")
    bench.store.update(job.uid, run_start_time_s=(job.run_start_time_s or 0.0) - 2.0)
    kill_program(job)
    running(bench, "job", attempt=1)
    job = bench.step_until_over("job")
    assert (job.state, job.end_reason) == (JobState.CANCELLED, "MAX_RUNNING_TIME")
    first, second = bench.store.attempts(job.uid)
    assert second.start_time_s is not None
    assert first.start_time_s is not None
    assert second.end_time_s - second.start_time_s < 2.9, "the first start's two seconds count"
