"""How far a job is, and what follows where it hangs, as the service sees it."""

from __future__ import annotations

from pathlib import Path

import pytest

import lockstep
from lockstep.jobs.machines.catalogue import load_catalogue
from lockstep.jobs.running.states import JobState
from lockstep.service.api.resources import job_resource
from lockstep.service.control.job_inputs import gang_of
from lockstep.service.control.orders import gang_order
from lockstep.testing.bench import Bench

HERE = {"env": {"master": {"PYTHONPATH": str(Path(lockstep.__file__).parents[1])}}}
REPORTS = "import lockstep, time; lockstep.report_progress(step=7, loss=float('nan'), accuracy=0.5); time.sleep(600)"
HANGS_ONCE = """
import pathlib, time
first = not pathlib.Path("{seen}").exists()
pathlib.Path("{seen}").touch()
time.sleep(600 if first else 0)
"""


def test_a_job_shows_how_far_it_is(bench: Bench) -> None:
    bench.create("training", REPORTS, lockstep=HERE)
    job = bench.step_until("training", lambda job: any(replica.status.progress for replica in job.replicas))
    progress = job_resource(job)["lockstep"]["progress"]
    assert progress["text"] == "step 7, accuracy 0.5, loss not finite"
    assert (progress["step"], progress["metrics"], progress["notFinite"]) == (7, {"accuracy": 0.5}, ["loss"])


def test_a_job_that_hangs_is_started_again(bench: Bench, tmp_path: Path) -> None:
    bench.create("hangs", HANGS_ONCE.format(seen=tmp_path / "seen"), lockstep={"stuckAfter": "3s"})
    job = bench.step_until_over("hangs")
    assert job.state is JobState.SUCCEEDED
    first, *_ = bench.store.attempts(job.uid)  # on a slow machine there may be more
    assert first.end_reason == "STUCK(master-0, 3 s without a heartbeat or a line)"


@pytest.mark.heavy
def test_one_that_always_hangs_says_so(bench: Bench) -> None:
    own = {"stuckAfter": "3s", "restartPolicy": {"condition": "NEVER"}}
    bench.create("hangs", "import time; print('here', flush=True); time.sleep(600)", lockstep=own)
    job = bench.step_until_over("hangs")
    assert job.state is JobState.FAILED
    assert job.end_reason == "STUCK(master-0, 3 s without a heartbeat or a line)"
    assert (job.error_message or "").startswith(
        "replica master-replica-0: 3 s without a heartbeat or a line; its last lines:\n  here\n"
    )


def test_those_that_wait_for_others_may_be_silent(bench: Bench) -> None:
    job = bench.create(
        "roles",
        scaleTier="CUSTOM",
        masterType="n1-standard-4",
        workerType="n1-standard-4",
        workerCount="1",
        parameterServerType="n1-standard-4",
        parameterServerCount="1",
        lockstep={"stuckAfter": "90s"},
    )
    catalogue = load_catalogue()
    gang = gang_of(job, catalogue=catalogue)
    order = gang_order(
        job, gang=gang, nodes=["local"] * 3, settings=bench.settings, cluster=bench.cluster, catalogue=catalogue
    )
    assert [(replica.role, replica.stuck_after_s) for replica in order.replicas] == [
        ("master", 90.0),
        ("worker", 90.0),
        ("ps", None),
    ]
