"""A worker beside parameter servers that is lost is launched again alone, and all that is recorded goes on."""

from __future__ import annotations

import os
import signal

import psutil
import pytest

from lockstep.jobs.running.orders import GANG_ORDER
from lockstep.jobs.running.states import JobState
from lockstep.service.control.job_urls import metrics_url
from lockstep.service.store import JobRecord
from lockstep.service.telemetry.logs import Cursor, read_log
from lockstep.storage import open_bucket
from lockstep.testing.bench import Bench
from lockstep.testing.clusters import SERVED

MACHINE = "n1-standard-4"
JOB = {
    "scaleTier": "CUSTOM",
    "masterType": MACHINE,
    "workerType": MACHINE,
    "workerCount": "2",
    "parameterServerType": MACHINE,
    "parameterServerCount": "1",
}
WITH_A_CHILD = SERVED.replace(
    "    for number in range(50):",
    """
    if not life and not index:
        import subprocess
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        (folder / "child").write_text(str(child.pid))
    for number in range(50):""",
)
WORKER = "worker-replica-0"
NUMBER = 1
"""Of the first worker among the replicas."""


def pids(job: JobRecord) -> list[int | None]:
    return [replica.status.pid for replica in job.replicas]


def create(bench: Bench, **own: object) -> None:
    bench.create("job", SERVED.format(folder=str(bench.home.path)), **JOB, lockstep=own)


def kill(bench: Bench, *, life: int) -> JobRecord:
    """Waits for one of the first worker's lives, and kills it; returns the job as it was before."""

    def lives(job: JobRecord) -> bool:
        path = bench.home.path / "lives-0"
        running = job.state is JobState.RUNNING and all(replica.status.phase == "running" for replica in job.replicas)
        return running and path.exists() and len(path.read_text()) == life + 1 and is_said(job, life)

    job = bench.step_until("job", lives)
    os.kill(job.replicas[NUMBER].status.pid, signal.SIGKILL)
    return job


def is_said(job: JobRecord, life: int) -> bool:
    return any(text.startswith(f"life {life} line 49") for text in said(job))


def said(job: JobRecord, *, cursor: str = "") -> list[str]:
    page = read_log(job, cursor=Cursor.decode(cursor), size=1000, now_s=0.0)
    return [entry.stored.text for entry in page.entries if entry.replica == WORKER]


def restarts(bench: Bench) -> list[str]:
    events = bench.store.events(bench.job("job").uid)
    return [event.detail for event in events if event.kind == "replica_restarted"]


@pytest.mark.heavy
def test_a_killed_worker_runs_again_while_the_others_run_on(bench: Bench) -> None:
    create(bench)
    before = kill(bench, life=0)
    page = read_log(before, cursor=Cursor.decode(""), size=1000, now_s=0.0)
    read = [entry.stored.text for entry in page.entries if entry.replica == WORKER]
    # Nobody looks while it is launched again; the next service finds it so, and tells it once.
    bench.restart()
    again = bench.step_until("job", lambda job: is_said(job, 1))
    (bench.home.path / "go").touch()
    job = bench.step_until_over("job")
    assert job.state is JobState.SUCCEEDED
    assert [old == new for old, new in zip(pids(before), pids(again), strict=True)] == [True, False, True, True]
    assert restarts(bench) == [
        f"MACHINE_ERROR(SIGKILL, worker-0): only {WORKER} is launched again, restart 1 of at most 3"
    ]
    assert (job.num_restarts, job.attempt, len(bench.store.attempts(job.uid))) == (1, 0, 1)
    assert job.start_time_s == before.start_time_s
    assert [replica.status.restarts for replica in job.replicas if replica.status.name != WORKER] == [(), (), ()]
    assert job.replicas[NUMBER].status.restarts[0].reason == "MACHINE_ERROR(SIGKILL, worker-0)"

    lines = said(job)
    address = lines[0].rpartition(" ")[2]
    assert [line for line in lines if not line.startswith("lockstep: ")] == [
        *(f"life {life} line {number} at {address}" for life in (0, 1) for number in range(50)),
        "done",
    ]
    assert read + said(job, cursor=page.cursor) == lines, "a reader who was there before reads on"
    assert read_log(job, cursor=Cursor.decode(""), size=1000, now_s=0.0).complete
    for name, num_lives in ((WORKER, 2), ("worker-replica-1", 1)):
        assert len(list(open_bucket(metrics_url(job, replica=name, attempt=0)).list())) == num_lives


@pytest.mark.heavy
def test_a_budget_that_is_used_up_ends_the_job(bench: Bench) -> None:
    create(bench, restartPolicy={"maxRestarts": 1})
    for life in (0, 1):
        kill(bench, life=life)
    job = bench.step_until_over("job")
    assert (job.state, job.end_reason) == (JobState.FAILED, "MACHINE_ERROR(SIGKILL, worker-0)")
    assert (job.num_restarts, len(restarts(bench))) == (1, 1)


@pytest.mark.heavy
def test_an_error_of_the_users_ends_the_job_at_once(bench: Bench) -> None:
    script = "import json, os, time; role = json.loads(os.environ['TF_CONFIG'])['task']['type']\n"
    bench.create("job", f"{script}if role == 'worker': raise SystemExit(3)\ntime.sleep(600)", **JOB)
    job = bench.step_until_over("job")
    assert (job.state, job.num_restarts) == (JobState.FAILED, 0)
    assert job.end_reason is not None
    assert job.end_reason.startswith("USER_ERROR(exit 3, worker-")
    assert restarts(bench) == []


@pytest.mark.heavy
def test_a_lost_node_takes_the_whole_gang_and_counts_with_the_rest(bench: Bench) -> None:
    create(bench)
    kill(bench, life=0)
    bench.step_until("job", lambda job: is_said(job, 1))
    bench.cluster.lose_node(f"{bench.job('job').uid}-0", replica=WORKER)
    job = bench.step_until("job", lambda job: job.attempt == 1 and job.state is JobState.RUNNING)
    details = [event.detail for event in bench.store.events(job.uid) if event.kind == "restarted"]
    assert details == ["NODE_LOST(worker-0): restart 2 of at most 3"]
    assert job.gang_order is not None
    assert GANG_ORDER.validate_python(job.gang_order).num_restarts == job.num_restarts == 2
    assert len(restarts(bench)) == 1


@pytest.mark.heavy
def test_a_killed_server_runs_again_alone_where_the_job_says_so(bench: Bench) -> None:
    create(bench, restartPolicy={"serversAlone": True})
    before = bench.step_until("job", lambda job: job.state is JobState.RUNNING and all(pids(job)))
    os.kill(before.replicas[-1].status.pid, signal.SIGKILL)
    again = bench.step_until("job", lambda job: pids(job)[-1] not in (None, pids(before)[-1]))
    assert pids(again)[:-1] == pids(before)[:-1]
    told = "MACHINE_ERROR(SIGKILL, ps-0): only ps-replica-0 is launched again, restart 1 of at most 3"
    assert restarts(bench) == [told]
    (bench.home.path / "go").touch()
    assert bench.step_until_over("job").state is JobState.SUCCEEDED


@pytest.mark.heavy
def test_a_job_may_want_all_of_it_to_start_again(bench: Bench) -> None:
    create(bench, restartPolicy={"wholeJob": True})
    before = kill(bench, life=0)
    job = bench.step_until("job", lambda job: job.attempt == 1 and job.state is JobState.RUNNING)
    assert set(pids(job)).isdisjoint(pids(before))
    assert restarts(bench) == []


@pytest.mark.heavy
@pytest.mark.parametrize("how", ["runner", "program"])
def test_a_child_of_a_life_before_is_ended_with_it(bench: Bench, how: str) -> None:
    bench.create("job", WITH_A_CHILD.format(folder=str(bench.home.path)), **JOB)
    job = bench.step_until("job", lambda job: is_said(job, 0))
    child = psutil.Process(int((bench.home.path / "child").read_text()))
    assert child.is_running()
    program = psutil.Process(job.replicas[NUMBER].status.pid)
    victim = program if how == "program" else program.parent()
    assert victim is not None
    victim.kill()
    bench.step_until("job", lambda job: is_said(job, 1))
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    (bench.home.path / "go").touch()
    assert bench.step_until_over("job").state is JobState.SUCCEEDED
