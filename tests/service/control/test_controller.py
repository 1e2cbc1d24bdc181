"""The controller: jobs through their lives, and what it does when something dies in between."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal

import pytest

from lockstep.errors import ConflictError, EngineError, WrongStateError
from lockstep.jobs.running.orders import GangStatus
from lockstep.jobs.running.states import JobEvent, JobState
from lockstep.service.control.starts import MAX_ATTEMPTS
from lockstep.service.problems import Part
from lockstep.service.store import JobRecord
from lockstep.service.telemetry.logs import Cursor, read_log
from lockstep.testing.bench import Bench
from lockstep.testing.served import Served

WAIT = "import time; print('up', flush=True); time.sleep(600)"
GPUS = {
    "scaleTier": "CUSTOM",
    "masterType": "n1-standard-8",
    "masterConfig": {"acceleratorConfig": {"count": "2", "type": "NVIDIA_TESLA_V100"}},
}


def _states(bench: Bench, job_id: str) -> list[str]:
    return [event.state for event in bench.store.events(bench.job(job_id).uid)]


def _log(job: JobRecord) -> list[str]:
    return [entry.stored.text for entry in read_log(job, cursor=Cursor({}), size=1000, now_s=0).entries]


def test_a_job_goes_through_its_states_and_is_billed_for_running_alone(bench: Bench) -> None:
    bench.create("good", "print('hello')", **GPUS)
    job = bench.step_until_over("good")
    assert _states(bench, "good") == ["QUEUED", "PREPARING", "RUNNING", "SUCCEEDED"]
    assert job.start_time_s is not None
    assert job.end_time_s is not None
    assert job.create_time_s <= job.start_time_s <= job.end_time_s
    assert job.bill is not None
    assert job.bill.ml_units is not None
    expected = Decimal("10.898") * Decimal(job.end_time_s - job.start_time_s) / 3600
    assert abs(job.bill.ml_units - expected) <= Decimal("0.006")
    assert not job.bill.has_own_prices
    (replica,) = job.replicas
    assert replica.status.end is not None
    assert replica.status.end.describe() == "exit code 0"
    assert replica.status.usage.cpu_s > 0
    assert bench.cluster.observe(f"{job.uid}-0") is None, "the engine holds nothing of it any more"


def test_what_is_asked_for_is_looked_at_at_once(bench: Bench) -> None:
    """And not when the controller would look next."""
    bench.settings = replace(bench.settings, poll_interval_s=3600.0)
    bench.restart()
    stop = threading.Event()
    loop = threading.Thread(target=bench.controller.run, args=(stop,))
    loop.start()
    served = Served(bench)
    try:
        training_input = {"scaleTier": "BASIC", "pythonModule": "program", "args": ["x"]}
        made = served.http.post("/v1/projects/local/jobs", json={"jobId": "a", "trainingInput": training_input})
        assert made.status_code == 200, made.text
        _wait_until(lambda: bench.job("a").state is not JobState.QUEUED)
        served.http.post("/v1/projects/local/jobs/a:cancel").raise_for_status()
        _wait_until(lambda: bench.job("a").state is not JobState.PREPARING)
    finally:
        stop.set()
        bench.controller.wake()
        loop.join(30)
        served.close()
    assert not loop.is_alive()


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_failed_job_names_replica_cause_and_last_lines(bench: Bench) -> None:
    bench.create("bad", "print('the reason'); raise SystemExit(3)")
    job = bench.step_until_over("bad")
    assert job.state is JobState.FAILED
    assert job.error_message == "replica master-replica-0: exit code 3; its last lines:\n  the reason"


def test_a_killed_program_fails_its_job(bench: Bench) -> None:
    bench.create("killed", WAIT, lockstep={"restartPolicy": {"condition": "NEVER"}})
    running = bench.step_until("killed", lambda job: bool(job.replicas) and job.replicas[0].status.pid is not None)
    os.kill(running.replicas[0].status.pid, signal.SIGKILL)
    job = bench.step_until_over("killed")
    assert job.state is JobState.FAILED
    assert "master-replica-0: killed by SIGKILL" in (job.error_message or "")
    assert job.end_reason == "MACHINE_ERROR(SIGKILL, master-0)"


def test_jobs_wait_in_line_and_say_for_what(bench: Bench) -> None:
    for name in ("first", "second", "third"):
        bench.create(name, WAIT)
    bench.step_until_state("first", JobState.RUNNING)
    third = bench.job("third")
    assert third.state is JobState.QUEUED
    waits = bench.controller.schedule.explain(third)
    assert (waits.position, waits.reason) == (1, "0 of 1 job slots of this service's 2 are free")
    bench.store.advance(bench.job("first").uid, JobEvent.CANCEL_REQUESTED, detail="test")
    bench.step_until_state("third", JobState.RUNNING)


def test_a_higher_priority_goes_first(bench: Bench) -> None:
    bench.settings = replace(bench.settings, max_running_jobs=1)
    bench.restart()
    bench.create("low", "pass")
    bench.create("high", "pass", scheduling={"priority": "7"})
    for name in ("low", "high"):
        bench.step_until_over(name)
    low, high = bench.job("low"), bench.job("high")
    assert low.start_time_s is not None
    assert high.end_time_s is not None
    assert high.end_time_s <= low.start_time_s


def test_a_job_that_waits_too_long_is_cancelled_with_the_reason(bench: Bench) -> None:
    bench.create("patient", WAIT)
    bench.create("busy", WAIT)
    bench.step_until_state("busy", JobState.RUNNING)
    late = bench.create("late", WAIT, scheduling={"maxWaitTime": "1800s"})
    bench.store.update(late.uid, create_time_s=late.create_time_s - 1801)
    job = bench.step_until_over("late")
    assert job.state is JobState.CANCELLED
    assert job.error_message == "waited longer than scheduling.maxWaitTime, 1800 s"


def test_a_job_that_cannot_be_read_fails_alone(bench: Bench) -> None:
    odd = bench.create("odd", "pass")
    bench.store.update(odd.uid, training_input={"keyOfAnotherVersion": 1})
    bench.create("fine", "pass")
    assert bench.step_until_over("fine").state is JobState.SUCCEEDED
    job = bench.step_until_over("odd")
    assert job.state is JobState.FAILED
    assert "cannot read the job" in (job.error_message or "")


def test_a_running_job_that_cannot_be_read_any_more_is_ended(bench: Bench) -> None:
    job = bench.create("odd", WAIT)
    bench.step_until_state("odd", JobState.RUNNING)
    bench.store.update(job.uid, training_input={"keyOfAnotherVersion": 1})
    assert bench.step_until_over("odd").state is JobState.FAILED
    assert bench.cluster.observe(f"{job.uid}-0") is None


def test_a_gang_that_succeeded_before_all_of_it_started_is_a_success(bench: Bench) -> None:
    bench.create(
        "short",
        "import json, os, time\ntime.sleep(600 if json.loads(os.environ['TF_CONFIG'])['task']['type'] == 'ps' else 0)",
        scaleTier="CUSTOM",
        masterType="n1-standard-4",
        parameterServerType="n1-standard-4",
        parameterServerCount="1",
    )
    job = bench.step_until_over("short")
    assert job.state is JobState.SUCCEEDED
    assert _states(bench, "short") == ["QUEUED", "PREPARING", "RUNNING", "SUCCEEDED"]


def test_a_cancelled_program_that_ends_well_is_cancelled(bench: Bench) -> None:
    job = bench.create(
        "polite",
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        "print('up', flush=True); time.sleep(600)",
    )
    bench.step_until("polite", lambda job: bool(_log(job)))
    bench.store.advance(job.uid, JobEvent.CANCEL_REQUESTED, detail="test")
    assert bench.step_until_over("polite").state is JobState.CANCELLED


def test_an_engine_that_dies_idle_is_brought_up_again(bench: Bench) -> None:
    bench.cluster.kill()
    with pytest.raises(EngineError):
        bench.cluster.observe("any")
    bench.controller.step()
    assert bench.cluster.observe("any") is None
    assert bench.problems.all() == []


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.PREPARING, JobState.RUNNING])
def test_a_job_can_be_cancelled_at_every_state(bench: Bench, state: JobState) -> None:
    if state is JobState.PREPARING:
        bench.cluster.hold_placement(held=True)
    job = bench.create("victim", WAIT)
    if state is not JobState.QUEUED:
        bench.step_until_state("victim", state)
        bench.controller.step()
    bench.store.advance(job.uid, JobEvent.CANCEL_REQUESTED, detail="test")
    ended = bench.step_until_over("victim")
    assert ended.state is JobState.CANCELLED
    assert ended.bill is not None
    if state is not JobState.RUNNING:
        assert ended.start_time_s is None
        assert ended.bill.ml_units == Decimal("0.00")
    with pytest.raises(WrongStateError):
        bench.store.advance(job.uid, JobEvent.CANCEL_REQUESTED, detail="again")


def test_a_job_that_runs_too_long_is_cancelled_with_the_reason(bench: Bench) -> None:
    bench.create("slow", WAIT, scheduling={"maxRunningTime": "1s"})
    job = bench.step_until_over("slow")
    assert job.state is JobState.CANCELLED
    assert job.error_message == "ran longer than scheduling.maxRunningTime, 1 s"


def test_a_service_that_restarts_adopts_what_runs(bench: Bench) -> None:
    bench.create("adopted", "import time\nfor i in range(40):\n  print(i, flush=True)\n  time.sleep(0.02)")
    before = bench.step_until_state("adopted", JobState.RUNNING)
    bench.restart()
    job = bench.step_until_over("adopted")
    assert job.state is JobState.SUCCEEDED
    assert job.start_time_s == before.start_time_s
    assert _states(bench, "adopted") == ["QUEUED", "PREPARING", "RUNNING", "SUCCEEDED"]
    assert _log(job) == [str(i) for i in range(40)]


def test_a_service_that_died_after_recording_its_intention_acts_on_it(bench: Bench) -> None:
    bench.create("intended", "print('once')")
    bench.cluster.kill()  # the intention is recorded, and nothing is placed
    bench.controller._start_queued()
    assert bench.job("intended").state is JobState.PREPARING
    bench.restart()
    ended = bench.step_until_over("intended")
    assert ended.state is JobState.SUCCEEDED
    assert _log(ended) == ["once"]
    # Nobody could know that nothing had run: the second placing had an id, a log and a folder of its own.
    assert ended.attempt == 1
    assert ended.gang_order is not None
    assert ended.gang_order["gang_id"] == f"{ended.uid}-1"
    assert ended.gang_order["replicas"][0]["log_url"].endswith("/attempt-001")


def test_a_job_that_the_engine_loses_again_and_again_before_it_runs_is_given_up(bench: Bench) -> None:
    bench.cluster.hold_placement(held=True)
    bench.create("unlucky", "pass")
    for attempt in range(MAX_ATTEMPTS):
        job = bench.step_until("unlucky", lambda job, n=attempt: job.state is JobState.PREPARING and job.attempt == n)
        assert bench.cluster.observe(f"{job.uid}-{attempt}") is not None
        bench.cluster.kill()
    job = bench.step_until_over("unlucky")
    assert job.state is JobState.FAILED
    assert job.error_message == f"the engine lost the job {MAX_ATTEMPTS} times before it ran"


def test_a_job_that_ended_while_no_service_ran_is_found(bench: Bench) -> None:
    job = bench.create("meanwhile", "print('done')")
    bench.step_until("meanwhile", lambda job: job.state is not JobState.QUEUED and bool(job.replicas))
    gang = f"{job.uid}-0"
    while (status := bench.cluster.observe(gang)) is None or status.end is None:
        pass
    bench.restart()
    job = bench.step_until_over("meanwhile")
    assert job.state is JobState.SUCCEEDED
    assert job.end_time_s == status.replicas[0].ended_time_s, "the recorded end, not the time of looking"


def test_a_lost_engine_fails_running_jobs_and_comes_back_for_queued_ones(bench: Bench) -> None:
    bench.create("lost", WAIT, lockstep={"restartPolicy": {"maxRestarts": 0}})
    bench.step_until_state("lost", JobState.RUNNING)
    bench.cluster.kill()
    bench.create("next", "print('ok')")
    job = bench.step_until_over("lost")
    assert job.state is JobState.FAILED
    assert "the engine lost the job" in (job.error_message or "")
    assert job.end_reason == "NODE_LOST"
    assert bench.step_until_over("next").state is JobState.SUCCEEDED


def test_an_engine_that_does_not_answer_for_one_gang_has_its_problem_until_it_does(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.create("job", WAIT)
    bench.step_until_state("job", JobState.RUNNING)

    def silent(_gang_id: str) -> GangStatus:
        raise EngineError("the gang's supervisor does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(bench.cluster, "observe", silent)
        bench.controller.step()
        (problem,) = bench.problems.all()
        assert (problem.part, problem.text) == (Part.ENGINE, "the gang's supervisor does not answer")
        bench.controller.step()
        assert bench.problems.all() == [problem], "it has been there since it was first seen"
    bench.controller.step()
    assert bench.problems.all() == []


def test_a_name_is_taken_once(bench: Bench) -> None:
    bench.create("same", "pass")
    with pytest.raises(ConflictError, match="has a job 'same' already"):
        bench.store.create(project="local", job_id="same", training_input={}, labels={}, simulated=False, outputs={})


def test_a_job_is_over_once_what_it_could_not_say_is_on_the_services_disk(bench: Bench) -> None:
    """The engine, and with it the nodes, may forget it then."""
    bench.cluster.set_leftover_parts(3)
    bench.create("refused", "print('hello')")
    bench.step_until_over("refused")
    assert _states(bench, "refused")[-1] == "SUCCEEDED"
    assert bench.cluster.num_leftover_parts == 0


def test_several_replicas_have_logs_of_their_own(bench: Bench) -> None:
    bench.create(
        "pair",
        "import json, os; print(json.loads(os.environ['TF_CONFIG'])['task'])",
        scaleTier="CUSTOM",
        masterType="n1-standard-4",
        workerType="n1-standard-4",
        workerCount="1",
    )
    job = bench.step_until_over("pair")
    assert job.state is JobState.SUCCEEDED, job.error_message
    page = read_log(job, cursor=Cursor({}), size=10, now_s=0)
    assert {entry.replica for entry in page.entries} == {"master-replica-0", "worker-replica-0"}
    assert page.complete


def test_a_role_has_its_own_variables(bench: Bench) -> None:
    script = "import os; print(os.environ['LEVEL']); assert os.environ['LEVEL'] == 'debug'"
    bench.create("variables", script, lockstep={"env": {"master": {"LEVEL": "debug"}, "worker": {"LEVEL": "info"}}})
    assert bench.step_until_over("variables").state is JobState.SUCCEEDED


def test_a_gang_whose_room_was_taken_meanwhile_waits_in_the_queue_again(bench: Bench) -> None:
    bench.settings = replace(bench.settings, place_within_s=0.05)
    bench.restart()
    bench.cluster.hold_placement(held=True)
    bench.create("late", "print('here')")
    bench.step_until(
        "late", lambda _: "requeued" in [event.kind for event in bench.store.events(bench.job("late").uid)]
    )
    bench.cluster.hold_placement(held=False)
    job = bench.step_until_over("late")
    assert job.state is JobState.SUCCEEDED
    assert (job.num_restarts, _log(job)) == (0, ["here"])
    details = [event.detail for event in bench.store.events(job.uid) if event.kind == "requeued"]
    assert set(details) == {"others took its resources before it was placed"}
