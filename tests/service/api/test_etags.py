"""A job's etag covers what its owner may write: nothing that the service records of it meanwhile makes a conflict."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import lockstep
from lockstep.jobs.running.states import JobState
from lockstep.testing.bench import Bench
from lockstep.testing.served import Served

JOB = "/v1/projects/local/jobs/training"
PROGRAM = """
import lockstep, time
for step in range(6000):
    lockstep.report_progress(step=step, loss=1 / (step + 1))
    time.sleep(0.1)
"""


class _Clock:
    """A real clock that can be put forward."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_s


@pytest.fixture
def clock(bench: Bench) -> _Clock:
    bench.clock = _Clock()
    bench.restart()
    return bench.clock


def _step(service: Served) -> int:
    progress = service.http.get(JOB).json()["lockstep"]["progress"]
    return -1 if progress is None else progress["step"]


def test_a_patch_succeeds_with_an_etag_that_is_half_a_minute_old_while_the_job_reports(
    clock: _Clock, bench: Bench, service: Served
) -> None:
    here = {"env": {"master": {"PYTHONPATH": str(Path(lockstep.__file__).parents[1])}}}
    bench.create("training", PROGRAM, lockstep=here)
    bench.step_until("training", lambda job: job.state is JobState.RUNNING and _step(service) >= 0)
    etag = service.http.get(JOB).json()["etag"]
    clock.ahead_s = 30.0
    for _ in range(2):
        before = _step(service)
        bench.step_until("training", lambda _, before=before: _step(service) > before)
    changed = service.http.patch(f"{JOB}?updateMask=labels", json={"labels": {"a": "b"}, "etag": etag})
    assert changed.status_code == 200, changed.text
    assert changed.json()["labels"] == {"a": "b"}
    again = service.http.patch(f"{JOB}?updateMask=labels", json={"labels": {"a": "c"}, "etag": etag})
    assert again.status_code == 409, "the labels were changed since that etag"


def test_a_change_of_state_leaves_the_etag(bench: Bench, service: Served) -> None:
    bench.create("training", "pass")
    etag = service.http.get(JOB).json()["etag"]
    bench.step_until_over("training")
    assert service.http.get(JOB).json()["etag"] == etag
