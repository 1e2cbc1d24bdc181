"""What a job is billed where nobody saw it end: the time of which there is evidence, whenever somebody looks again."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockstep.jobs.machines.catalogue import load_catalogue
from lockstep.jobs.running.orders import GANG_ORDER, STATUS, ReplicaOrder, ReplicaPhase, ReplicaStatus
from lockstep.jobs.running.states import JobState
from lockstep.runner.logs import segment_key
from lockstep.service.billing.usages import job_usage
from lockstep.service.control.evidence import Evidence
from lockstep.service.control.starts import NEVER_RAN
from lockstep.service.store import AttemptRecord, JobRecord
from lockstep.spools import STATUS_FILE
from lockstep.storage import open_bucket
from lockstep.testing.bench import Bench
from lockstep.testing.served import Served

NIGHT_S = 36_000.0
WAIT = "import time; print('up', flush=True); time.sleep(600)"


def _replica(bench: Bench, job_id: str) -> ReplicaOrder:
    return GANG_ORDER.validate_python(bench.job(job_id).gang_order).replicas[0]


def _said(replica: ReplicaOrder) -> ReplicaStatus | None:
    path = Path(replica.spool, STATUS_FILE)
    return STATUS.validate_json(path.read_bytes()) if path.exists() else None


def _await(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _has_logged(replica: ReplicaOrder) -> bool:
    return open_bucket(replica.log_url).exists(segment_key(0))


def _next_morning(bench: Bench) -> None:
    """Acts as a service and an engine that were killed, and a service that was started long after."""
    bench.cluster.kill()
    bench.clock = lambda: time.time() + NIGHT_S
    bench.restart()


def _runs(bench: Bench, job_id: str = "job", **training_input: Any) -> ReplicaOrder:
    bench.create(job_id, WAIT, **training_input)
    bench.step_until_state(job_id, JobState.RUNNING)
    replica = _replica(bench, job_id)
    _await(lambda: _has_logged(replica))
    return replica


def _first(bench: Bench, job_id: str = "job") -> AttemptRecord:
    bench.step_until(job_id, lambda job: job.attempt > 0 or job.end_time_s is not None)
    return bench.store.attempts(bench.job(job_id).uid)[0]


def test_an_outage_is_not_billed_where_the_runner_says_when_its_program_ended(bench: Bench) -> None:
    _runs(bench)
    before_s = time.time()
    _next_morning(bench)
    after_s = time.time()
    first = _first(bench)
    assert before_s <= first.end_time_s <= after_s
    assert first.latest_end_time_s is None, "it is known"
    assert first.end_reason == "NODE_LOST"
    events = {event.kind: event for event in bench.store.events(bench.job("job").uid)}
    assert (events["restarted"].time_s, events["restarted"].detail) == (
        first.end_time_s,
        "NODE_LOST: restart 1 of at most 3",
    )
    assert events["restarted"].recorded_time_s > after_s + NIGHT_S - 1


@pytest.mark.parametrize("knows", ["report", "log", "nothing"])
@pytest.mark.heavy
def test_an_outage_is_not_billed_where_all_was_killed(bench: Bench, knows: str) -> None:
    """As by a power cut: what was said last counts, in the spool, the database or the bucket."""
    replica = _runs(bench)
    bench.step_until("job", lambda job: bool(job.replicas) and job.replicas[0].status.seen_time_s is not None)
    said = _said(replica)
    assert said is not None
    assert said.seen_time_s is not None
    _next_morning(bench)
    after_s = time.time()
    path = Path(replica.spool, STATUS_FILE)
    if knows == "report":
        path.write_bytes(STATUS.dump_json(said))
    else:  # a file that lost what was in it
        path.write_bytes(b"")
    if knows == "nothing":
        open_bucket(replica.log_url).delete(segment_key(0))
        assert replica.metrics_url is not None
        open_bucket(replica.metrics_url).delete_prefix("")
        bench.store.update(bench.job("job").uid, replicas=())
    start_s = bench.job("job").run_start_time_s
    first = _first(bench)
    assert first.start_time_s == start_s
    assert first.latest_end_time_s is not None
    assert first.latest_end_time_s > after_s + NIGHT_S - 1
    if knows == "report":
        assert said.seen_time_s <= first.end_time_s <= after_s
    elif knows == "log":
        assert first.start_time_s is not None
        assert first.start_time_s < first.end_time_s <= after_s
    else:
        assert first.end_time_s == first.start_time_s
    restarted = next(e for e in bench.store.events(bench.job("job").uid) if e.kind == "restarted")
    assert "NODE_LOST: restart 1 of at most 3; it ended between " in restarted.detail
    assert restarted.time_s == first.end_time_s


def test_a_program_that_ended_well_before_the_engine_died_has_succeeded(bench: Bench) -> None:
    bench.create("job", "import time; print('up', flush=True); time.sleep(0.5)")
    bench.step_until_state("job", JobState.RUNNING)
    replica = _replica(bench, "job")
    _await(lambda: (said := _said(replica)) is not None and said.phase is ReplicaPhase.ENDED)
    said = _said(replica)
    assert said is not None
    _next_morning(bench)
    job = bench.step_until_over("job")
    assert (job.state, job.num_restarts, job.end_time_s) == (JobState.SUCCEEDED, 0, said.ended_time_s)
    assert job.replicas[0].status.end is not None
    assert job.replicas[0].status.end.describe() == "exit code 0"
    assert not Path(replica.spool).parent.exists(), "what is recorded stays nowhere else"


def test_a_start_that_nobody_saw_is_billed_from_when_it_was(bench: Bench) -> None:
    bench.create("job", WAIT)
    bench.step_until_state("job", JobState.PREPARING)
    replica = _replica(bench, "job")
    _await(lambda: _has_logged(replica))
    said = _said(replica)
    assert said is not None
    _next_morning(bench)
    after_s = time.time()
    first = _first(bench)
    assert (first.attempt, first.start_time_s) == (0, said.started_time_s)
    assert first.end_time_s <= after_s
    events = [(event.kind, event.time_s) for event in bench.store.events(bench.job("job").uid)]
    assert events[2:4] == [("started", first.start_time_s), ("restarted", first.end_time_s)]


def test_a_start_that_never_ran_has_its_number_and_its_reason(bench: Bench) -> None:
    bench.cluster.hold_placement(held=True)
    bench.create("job", "pass")
    bench.step_until_state("job", JobState.PREPARING)
    bench.cluster.kill()
    bench.cluster.hold_placement(held=False)
    job = bench.step_until_over("job")
    first, second = bench.store.attempts(job.uid)
    assert (first.attempt, first.start_time_s, first.end_reason) == (0, None, str(NEVER_RAN))
    assert (second.attempt, second.end_reason) == (1, None)
    assert job.num_restarts == 0


def test_an_outage_uses_up_no_running_time(bench: Bench) -> None:
    _runs(bench, scheduling={"maxRunningTime": "3600s"})
    _next_morning(bench)
    bench.step_until("job", lambda job: job.attempt == 1)
    bench.clock = time.time  # which is the runners'
    bench.restart()
    bench.step_until("job", lambda job: job.state is JobState.RUNNING)
    bench.step()
    assert bench.job("job").state is JobState.RUNNING
    assert [event.kind for event in bench.store.events(bench.job("job").uid)].count("cancel_requested") == 0


def test_a_job_of_which_nothing_is_heard_counts_up_to_its_last_sign(bench: Bench) -> None:
    _runs(bench)
    job = bench.step_until("job", lambda job: bool(job.replicas) and job.replicas[0].status.seen_time_s is not None)
    seen_s = job.replicas[0].status.seen_time_s

    def counted_s(job: JobRecord, *, now_s: float) -> float:
        (usage,) = job_usage(job, attempts=(), catalogue=load_catalogue(), now_s=now_s).usages
        return usage.end_time_s

    assert counted_s(job, now_s=seen_s + 5.0) == seen_s + 5.0
    assert counted_s(job, now_s=seen_s + NIGHT_S) == seen_s


def test_nothing_is_started_again_while_it_still_ends(bench: Bench) -> None:
    """A program takes its time of grace when its engine has died: nothing else writes to its checkpoints meanwhile."""
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True)"
    bench.create("job", f"{stubborn}; time.sleep(600)")
    bench.step_until_state("job", JobState.RUNNING)
    replica = _replica(bench, "job")
    _await(lambda: _has_logged(replica))
    order = GANG_ORDER.validate_python(bench.job("job").gang_order)
    now_s = [0.0]
    evidence = Evidence(monotonic=lambda: now_s[0])
    assert evidence.is_ending(order)
    now_s[0] = 20.0
    assert evidence.is_ending(order)
    now_s[0] = 60.0
    assert not evidence.is_ending(order), "for longer than that nobody waits: it is ended"
    assert not evidence.is_ending(order)
    assert not Path(replica.spool, "work").exists()


def test_the_starts_of_a_job_are_shown_and_add_up(bench: Bench) -> None:
    served = Served(bench)
    try:
        _runs(bench)
        shown = served.http.get("/v1/projects/local/jobs/job").json()["lockstep"]
        (running,) = shown["attempts"]
        assert (running["attempt"], running["endTime"], running["endReason"]) == (0, None, None)
    finally:
        served.close()
    _next_morning(bench)
    job = bench.step_until("job", lambda job: job.attempt == 1 and job.state is JobState.RUNNING)
    hour_s = 3600.0  # as if each had run for long enough to cost something
    first = bench.store.attempts(job.uid)[0]
    bench.store.update(job.uid, run_start_time_s=(job.run_start_time_s or 0.0) - 2 * hour_s)
    assert first.start_time_s is not None
    served = Served(bench)
    try:
        served.http.post("/v1/projects/local/jobs/job:cancel").raise_for_status()
        bench.step_until_over("job")
        shown = served.http.get("/v1/projects/local/jobs/job").json()["lockstep"]
    finally:
        served.close()
    lost, cancelled = shown["attempts"]
    assert (lost["attempt"], lost["endReason"], lost["latestEndTime"]) == (0, "NODE_LOST", None)
    assert (cancelled["attempt"], cancelled["endReason"]) == (1, "CANCELLED(by home)")
    assert lost["startTime"] < lost["endTime"]
    assert sum(float(attempt["costUsd"]) for attempt in shown["attempts"]) == pytest.approx(
        float(shown["bill"]["costUsd"])
    )
    assert float(shown["bill"]["costUsd"]) > 0.3
    assert round(sum(float(attempt["mlUnits"]) for attempt in shown["attempts"]), 2) == float(shown["bill"]["mlUnits"])
