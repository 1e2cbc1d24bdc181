"""Programs that really hang, under a real runner; and heartbeats on their whole way."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from tests.runner.test_runner_process import RunnerProcess, _await_log, _log, _order, _run

import lockstep
from lockstep.jobs.running.orders import Fault, ReplicaPhase

HERE = {"PYTHONPATH": str(Path(lockstep.__file__).parents[1])}
"""Has programs import the package that is tested, wherever another one is installed."""

HANGS = """
import threading
def wait_for_ever(): lock.acquire()
lock = threading.Lock(); lock.acquire()
print("up", flush=True)
wait_for_ever()
"""

BEATS = """
import os, socket, time
os.chdir(os.path.dirname(os.environ["LOCKSTEP_HEARTBEAT"]))
beats = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
for step in range(1, 11):
    beats.sendto(b'{"step": %d, "numExamples": %d}' % (step, 32 * step), "heartbeat")
    time.sleep(0.4)
"""


def test_a_program_that_hangs_is_ended_and_says_where(tmp_path: Path) -> None:
    status = _run(_order(tmp_path, sys.executable, "-c", HANGS, stuck_after_s=3.0))
    assert status.end is not None
    assert (status.end.fault, status.end.stopped, status.end.succeeded) == (Fault.STUCK, False, False)
    assert re.fullmatch(r"\d+ s without a heartbeat or a line", status.end.problem or "")
    assert status.end.signal == "SIGABRT"
    up, stacks = _log(tmp_path)
    assert up["text"] == "up"
    assert stacks["severity"] == "CRITICAL"
    assert ", line 3 in wait_for_ever\n" in str(stacks["text"])


@pytest.mark.heavy
def test_one_that_does_not_end_by_that_is_killed(tmp_path: Path) -> None:
    script = "import faulthandler, signal, time; signal.signal(signal.SIGABRT, signal.SIG_IGN); time.sleep(600)"
    status = _run(_order(tmp_path, sys.executable, "-c", script, stuck_after_s=3.0, grace_s=0.5))
    assert status.end is not None
    assert (status.end.fault, status.end.signal) == (Fault.STUCK, "SIGKILL")


def test_heartbeats_alone_are_signs_and_their_progress_is_told(tmp_path: Path) -> None:
    status = _run(_order(tmp_path, sys.executable, "-c", BEATS, stuck_after_s=3.0))
    assert status.end is not None
    assert status.end.succeeded, status.end
    assert _log(tmp_path) == []
    assert status.progress is not None
    assert status.progress.step == 10
    assert status.progress.examples_per_s is not None
    assert status.progress.examples_per_s > 0


def test_progress_is_told_while_the_program_runs(tmp_path: Path) -> None:
    script = "import lockstep, time; lockstep.report_progress(step=7, loss=0.5); time.sleep(600)"
    runner = RunnerProcess(_order(tmp_path, sys.executable, "-c", script, environment=HERE))
    progress = next(status.progress for status in runner.reports() if status.progress is not None)
    runner.close()
    assert (progress.step, dict(progress.metrics)) == (7, {"loss": 0.5})


def test_lines_alone_are_signs(tmp_path: Path) -> None:
    script = "import time\nfor _ in range(10): print('.', flush=True); time.sleep(0.4)"
    status = _run(_order(tmp_path, sys.executable, "-c", script, stuck_after_s=3.0))
    assert status.end is not None
    assert status.end.succeeded, status.end


def test_a_program_that_is_being_stopped_is_not_stuck(tmp_path: Path) -> None:
    script = (
        "import signal, time; signal.signal(signal.SIGTERM, lambda *_: None); print('up', flush=True); time.sleep(600)"
    )
    order = _order(tmp_path, sys.executable, "-c", script, stuck_after_s=2.0, grace_s=3.0)
    runner = RunnerProcess(order)
    assert runner.process.stdin is not None
    runner.wait_for(ReplicaPhase.RUNNING)
    _await_log(tmp_path)
    runner.process.stdin.write(b"stop\n")
    runner.process.stdin.flush()
    status = runner.last()
    runner.close()
    assert status.end is not None
    assert (status.end.stopped, status.end.fault, status.end.signal) == (True, Fault.PROGRAM, "SIGKILL")
